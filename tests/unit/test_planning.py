"""From host data to plans: all problems in one message, and what the controller has at hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from edge.artifacts import Artifact, ArtifactError, Cache, candidates
from edge.fleet import FleetHost
from edge.plan import HostPlan
from edge.planning import SettingsInvalid, check_fleet, model_info_for, plan_host
from edge.settings import QWEN_SHA256, Settings
from edge.survey import Survey
from tests.unit.recorded import QWEN, survey_of


def host(name: str, **data: object) -> FleetHost:
    return FleetHost(name, ("n100",), data)


def test_good_settings_by_host() -> None:
    checked = check_fleet([host("a", slots=1), host("b", ssh_user="root")])
    assert checked == {"a": Settings(slots=1), "b": Settings()}


def test_all_problems_of_all_hosts_in_one_message() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        check_fleet([host("a", thread=2, slots=0), host("b"), host("c", governor="turbo")])
    assert str(caught.value).splitlines() == [
        "3 problems in 2 hosts; nothing was changed:",
        "  a: thread = 2: no such setting; did you mean threads?",
        '  a: slots = 0: allowed: "auto" or a whole number from 1 to 64',
        '  c: governor = \'turbo\': allowed: "performance", "keep"',
    ]
    assert [problem.key for problem in caught.value.problems] == ["thread", "slots", "governor"]


def test_one_problem_is_one() -> None:
    with pytest.raises(SettingsInvalid, match=r"^1 problem in 1 host; nothing was changed:"):
        check_fleet([host("a", slots=0)])


def test_the_known_model_needs_no_download(tmp_path: Path) -> None:
    assert model_info_for(Settings(), Cache(tmp_path)) == QWEN
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_of_the_known_model_has_its_own_file_name(tmp_path: Path) -> None:
    settings = Settings(model_source="https://mirror.example.org/chat.gguf")
    info = model_info_for(settings, Cache(tmp_path))
    assert info == replace(QWEN, file_name="chat.gguf")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<html>log in</html>")
    settings = Settings(model_source=page.as_uri(), model_sha256="")
    with pytest.raises(ArtifactError, match="a web page"):
        model_info_for(settings, Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("digest", "what"),
    [("", "there is no file"), (hashlib.sha256(b"other").hexdigest(), "there is no file")],
)
def test_a_model_that_cannot_be_had_is_a_problem_of_the_host(
    tmp_path: Path, digest: str, what: str
) -> None:
    settings = Settings(model_source="file:///nowhere/m.gguf", model_sha256=digest)
    problems = plan(settings, survey_of("n100"), Cache(tmp_path))
    assert isinstance(problems, list)
    assert problems[0].key == "model_source"
    assert what in problems[0].what


def plan(settings: Settings, survey: Survey, cache: Cache) -> HostPlan | list[object]:
    return plan_host("a", ("n100",), settings, survey, cache)  # type: ignore[return-value]


def release_of(outcome: HostPlan | list[object]) -> str:
    assert isinstance(outcome, HostPlan)
    return outcome.engine.kind


def put_into(cache: Cache, kind: str) -> None:
    pin = next(pin for pin in candidates("auto", "x86_64") if pin.kind == kind)
    content = cache.work("test") / "engine.tar.gz"
    content.write_bytes(b"engine")
    sha256 = hashlib.sha256(b"engine").hexdigest()
    path = cache.add(content, sha256)
    artifact = Artifact(path=path, sha256=sha256, size_bytes=6, release_id=pin.release_id)
    cache.record("engines", f"{pin.release_id}-x86_64", artifact)


def installed(kind: str) -> Survey:
    pin = next(pin for pin in candidates("auto", "x86_64") if pin.kind == kind)
    survey = survey_of("n100")
    return replace(survey, installed=replace(survey.installed, engine_current=pin.release_id))


def test_auto_takes_the_release_first(tmp_path: Path) -> None:
    outcome = plan(Settings(), survey_of("n100"), Cache(tmp_path))
    assert release_of(outcome) == "release"
    assert isinstance(outcome, HostPlan)
    assert outcome.proxy.release_id.startswith("p-")
    assert "already" not in outcome.reasons["engine.release_id"]


def test_auto_keeps_to_what_was_built_without_internet(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put_into(cache, "build")
    outcome = plan(Settings(), survey_of("n100"), cache)
    assert release_of(outcome) == "build"
    assert isinstance(outcome, HostPlan)
    assert outcome.reasons["engine.release_id"].endswith("; in the cache already")


def test_auto_keeps_to_what_the_host_runs(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put_into(cache, "release")
    outcome = plan(Settings(), installed("build"), cache)
    assert release_of(outcome) == "build"
    assert isinstance(outcome, HostPlan)
    assert outcome.reasons["engine.release_id"].endswith("; installed already")


def test_what_is_asked_for_is_taken_whatever_there_is(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put_into(cache, "build")
    asked = Settings(engine_source="release")
    assert release_of(plan(asked, installed("build"), cache)) == "release"


def test_a_host_that_cannot_work_is_a_list_of_problems(tmp_path: Path) -> None:
    old = replace(survey_of("n100"), python="3.9", glibc=(2, 31))
    problems = plan(Settings(threads=9), old, Cache(tmp_path))
    assert isinstance(problems, list)
    assert len(problems) == 3


def test_the_default_digest_is_the_known_models() -> None:
    assert QWEN.sha256 == QWEN_SHA256 == Settings().model_sha256
