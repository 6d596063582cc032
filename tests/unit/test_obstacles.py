"""What stands in the way of a host, with and without a plan."""

from __future__ import annotations

from dataclasses import replace

from edge import obstacles
from edge.plan import ROOT
from edge.survey import MIB, Survey
from tests.unit.recorded import planned, survey_of


def with_free(host: Survey, mib: int) -> Survey:
    disk = replace(host.disks[ROOT], free_bytes=mib * MIB)
    return replace(host, disks={**host.disks, ROOT: disk})


def test_a_good_host_has_none() -> None:
    host = survey_of("n100")
    assert obstacles.of_host(host) == []
    assert obstacles.of_plan(planned("n100", "n100"), host) == []


def test_everything_is_said_at_once() -> None:
    host = replace(with_free(survey_of("n100"), 100), uid=1000, init="runit", tools=frozenset())
    said = "\n".join(obstacles.of_host(host))
    for words in ("root is needed", "by runit", "no apt-get", "100 MiB free and 300 are needed"):
        assert words in said


def test_room_for_the_model_is_the_plans_business() -> None:
    plan = planned("n100", "n100")  # Qwen2.5-0.5B: 468.6 MiB, and 300 for the software
    assert obstacles.of_plan(plan, with_free(survey_of("n100"), 769)) == []
    (said,) = obstacles.of_plan(plan, with_free(survey_of("n100"), 768))
    assert "has 768 MiB free and 769 are needed" in said
    assert obstacles.of_host(with_free(survey_of("n100"), 768)) == []
