"""Reading an inventory and surveying it, through the real pyinfra."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.fleet import FleetError, FleetHost, _reason, read_fleet, survey_fleet
from edge.survey import Survey
from tests.unit.command import pyinfra
from tests.unit.fake_fleet import write_fleet
from tests.unit.recorded import survey_of


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command, forked from a process that has imported it."""
    monkeypatch.setattr("edge.fleet._run", pyinfra)


def test_the_example_fleet() -> None:
    hosts = {host.name: host for host in read_fleet("inventory")}
    assert list(hosts) == ["192.0.2.11", "kiosk-entrance", "192.0.2.21", "198.51.100.31"]
    assert hosts["192.0.2.21"] == FleetHost(
        "192.0.2.21", ("ryzen", "fleet"), hosts["192.0.2.21"].data
    )
    assert hosts["192.0.2.21"].data["context_per_slot"] == 4096


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (["pi5"], ["198.51.100.31"]),
        (["192.*"], ["192.0.2.11", "192.0.2.21"]),
        (["pi5", "kiosk-entrance"], ["kiosk-entrance", "198.51.100.31"]),
    ],
)
def test_a_limit(limit: list[str], names: list[str]) -> None:
    assert [host.name for host in read_fleet("inventory", limit)] == names


@pytest.mark.usefixtures("quick")
def test_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fleet(tmp_path, {"n100": {"a": ("n100", {})}})
    monkeypatch.chdir(tmp_path)
    assert [set(host.groups) for host in read_fleet("boxes.py")] == [{"n100", "@fake", "boxes"}]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("inventory", "limit", "message"),
    [
        ("inventory", ["typo"], "^--limit typo matches no host. Hosts: 192.0.2.11, "),
        ("inventory/none.py", [], "^No inventory file: inventory/none.py$"),
    ],
)
def test_nobody_is_an_error(inventory: str, limit: list[str], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        read_fleet(inventory, limit)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nn100 = [\n", "boxes.py, line 2: '[' was never closed"),
        ("\n\nn100 = [kiosk]\n", "boxes.py, line 3: NameError: name 'kiosk' is not defined"),
        ("import nothing_there\n", "line 1: ModuleNotFoundError: No module named 'nothing_there'"),
        ("n100 = ['@nowhere/x']\n", "Invalid connector: nowhere"),
    ],
)
def test_a_mistake_in_an_inventory_is_shown(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "boxes.py").write_text(text)
    with pytest.raises(FleetError) as caught:
        read_fleet(str(tmp_path / "boxes.py"))
    assert str(caught.value).endswith(message)


@pytest.mark.usefixtures("quick")
def test_a_mistake_in_group_data_is_shown(tmp_path: Path) -> None:
    write_fleet(tmp_path, {"n100": {"a": ("n100", {})}})
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text("slots = 2\nthreads = \n")
    with pytest.raises(FleetError, match=r"group_data/all.py, line 2: invalid syntax$"):
        read_fleet(str(tmp_path / "boxes.py"))


@pytest.mark.usefixtures("quick")
def test_every_host_is_surveyed_or_named_with_the_reason(tmp_path: Path) -> None:
    inventory = write_fleet(
        tmp_path,
        {"n100": {"a": ("n100", {}), "gone": ("", {})}, "pi5": {"b": ("pi5-8gb", {})}},
    )
    surveys = survey_fleet(inventory)
    assert list(surveys) == ["@fake/a", "gone", "@fake/b"]
    assert surveys["@fake/a"] == survey_of("n100")
    assert surveys["@fake/b"] == survey_of("pi5-8gb")
    assert isinstance(surveys["gone"], str)
    assert surveys["gone"].startswith("Could not connect")


@pytest.mark.usefixtures("quick")
def test_a_fleet_that_is_all_gone(tmp_path: Path) -> None:
    surveys = survey_fleet(write_fleet(tmp_path, {"n100": {"gone": ("", {})}}))
    assert list(surveys) == ["gone"]
    assert str(surveys["gone"]).startswith("Could not connect")


@pytest.mark.usefixtures("quick")
def test_a_host_that_answers_nonsense(tmp_path: Path) -> None:
    answer = "{'@@%s': 'Welcome!', 'zz': ''}"
    data = f"{{'fake_responses': {answer}, 'fake_delay': 0, 'fake_delay_jitter': 0}}"
    failing = "{'fake_responses': {'@@%s': {'success': False, 'stderr': 'sh: no'}}}"
    (tmp_path / "boxes.py").write_text(f"x = [('@fake/a', {data}), ('@fake/b', {failing})]\n")
    surveys = survey_fleet(str(tmp_path / "boxes.py"))
    assert "incomplete" in str(surveys["@fake/a"])
    assert "sh: no" in str(surveys["@fake/b"])
    assert "could not load fact" in str(surveys["@fake/b"])


def test_this_machine(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("x = [('@local', {'_sudo': False})]\n")
    survey = survey_fleet(str(tmp_path / "here.py"))["@local"]
    assert isinstance(survey, Survey)
    assert survey.kernel == os.uname().release


LOG = """--> Connecting to hosts...
    [pi]       Connected
    [pi-2]     Could not connect (timed out)
    [n.100]    Authentication error (username=edge) (Authentication failed.)

--> pyinfra error: No hosts remaining!
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pi-2", "Could not connect (timed out)"),
        ("n.100", "Authentication error (username=edge) (Authentication failed.)"),
        ("pi", "No hosts remaining!"),
        ("nx100", "No hosts remaining!"),
    ],
)
def test_reasons_from_the_log(name: str, reason: str) -> None:
    assert _reason(name, LOG) == reason
