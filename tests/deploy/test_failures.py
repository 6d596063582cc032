"""One host's trouble is its own: it fails with a readable reason, the others go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.deploy.conftest import Fleet
from tests.deploy.device import GENERIC, N100, PI5, Device
from tests.deploy.rollout import FakeHost, Run
from tests.unit.boot.sections import boot_files

GATE = "Gate | Switch and prove"


@dataclass(frozen=True)
class Failure:
    """A host that fails, the operation that it fails at ("" before the first), what is said."""

    device: Device | None
    at: str
    says: tuple[str, ...]
    group: str = "n100"
    settings: Mapping[str, object] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    table: str = ""
    """What the last lines of the run say of it."""


ROLLED_BACK = json.dumps(
    {
        "ok": False,
        "reason": "the engine did not answer within 180 s",
        "rolled_back": True,
        "serving": True,
        "restarted": ["llama-server"],
        "journal": ["llama-server: error: failed to load model"],
    }
)
STOPPED = json.dumps({"ok": False, "reason": "the engine ended at once", "serving": False})
FULL_DISK = "/opt/edge-llm 102400 / rw\n/var/lib/edge-llm 102400 / rw\n/etc 102400 / rw"

FAILURES = {
    "not-root": Failure(
        N100.having(user="1000"), "",
        ("root is needed, and commands run as uid 1000", "_sudo = True"),
    ),
    "read-only": Failure(
        N100.having(disk="/opt/edge-llm 60000000 / ro\n/etc 60000000 / rw"), "",
        ("/ is read-only", "/opt/edge-llm"),
    ),
    "disk-full": Failure(
        N100.having(disk=FULL_DISK), "",
        ("/ has 100 MiB free and 300 are needed in /opt/edge-llm", "make room"),
    ),
    "no-systemd": Failure(
        GENERIC.having(systemd="none\nrunit"), "",
        ("was not started by systemd but by runit",), group="generic",
    ),
    "old-systemd": Failure(
        GENERIC.having(systemd="systemd 247 (247.3-7)\nsystemd"), "",
        ("systemd 247 is too old; 249 or later is needed",), group="generic",
    ),
    "no-apt": Failure(
        N100.swapped("tools", "apt-get\n", ""), "",
        ("python3, libgomp1 missing, and there is no apt-get",),
    ),
    "several-at-once": Failure(
        N100.having(user="1000", disk=FULL_DISK), "",
        ("root is needed", "100 MiB free"),
    ),
    "broken-cmdline": Failure(
        PI5.having(
            boot_files=boot_files({"/boot/firmware/cmdline.txt": "tty1\nroot=PARTUUID=1ab-02\n"})
        ), "",
        ("/boot/firmware/cmdline.txt is not one line with one root=", "mend it by hand"),
        group="pi5",
    ),
    "survey-fails": Failure(None, "", ("it could not be surveyed: ",)),
    "survey-cut-off": Failure(
        Device({name: text for name, text in N100.sections.items() if name != "unreadable"}),
        "", ("the survey came back incomplete",),
    ),
    "apt-fails": Failure(
        N100, "Preflight | Packages", ("E: Unable to locate package libgomp1",),
        answers={"packages": "E: Unable to locate package libgomp1"},
        table="Preflight | Packages failed: E: Unable to locate package libgomp1",
    ),
    "rolled-back": Failure(
        N100, GATE,
        ("the engine did not answer within 180 s", "Went back to what was last good",
         "the host serves again", "failed to load model"),
        answers={"activate": ROLLED_BACK},
        table="the engine did not answer within 180 s",
    ),
    "stopped": Failure(
        N100, GATE,
        ("the engine ended at once", "There is no earlier good state to go back to"),
        answers={"activate": STOPPED}, table="the engine ended at once",
    ),
    "agent-dumb": Failure(
        N100, GATE, ("the agent on the host gave no result",), answers={"activate": ""},
        table="the agent on the host gave no result",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(fleet: Fleet) -> Run:
    hosts = {"healthy": fleet.host(N100, "n100"), "settled": fleet.host(
        fleet.converged("pi5"), "pi5")}  # fmt: skip
    for name, failure in FAILURES.items():
        data = {**fleet.model_data, **failure.settings}
        text = None if failure.device is None else failure.device.text
        hosts[name] = FakeHost(failure.group, text, data, **failure.answers)
    return fleet.roll_out(hosts)


@pytest.mark.parametrize("name", FAILURES)
def test_a_host_fails_alone_and_says_why(run: Run, name: str) -> None:
    failure = FAILURES[name]
    said = run.said(name)
    for words in failure.says:
        assert words in said, f"{words!r} is not in:\n{said}"
    if failure.at:
        # pyinfra counts as failed whatever comes after the first failure as well.
        assert run.failed(name)[0] == failure.at
    else:
        # Nothing but the survey was run there.
        assert {each.operation for each in run.told(name)} == {""}


def test_the_others_go_on(run: Run) -> None:
    assert run.changed("healthy")[-1] == GATE
    assert run.failed("healthy") == []
    assert len(run.told("settled")) == 2


def test_the_run_fails_without_a_traceback(run: Run) -> None:
    assert run.code != 0
    assert "Traceback" not in run.log
    assert "pyinfra-debug.log" not in run.log


@pytest.mark.parametrize("name", FAILURES)
def test_the_last_table_names_each_failed_host(run: Run, name: str) -> None:
    lines = [line for line in run.log.splitlines() if line.startswith(f"@fake/{name}: ")]
    (line,) = lines
    assert line.startswith(f"@fake/{name}: FAILED: ")
    # The reason stands there, not "see above": above are the lines of a hundred hosts.
    assert (FAILURES[name].table or FAILURES[name].says[0]) in line


def test_the_last_line_counts(run: Run) -> None:
    assert f"2 of {2 + len(FAILURES)} hosts serve and are as they should be." in run.log


def test_a_fleet_of_failed_hosts_is_a_failure(fleet: Fleet) -> None:
    one = fleet.roll_out({"only": fleet.host(N100.having(user="1000"), "n100")})
    assert one.code != 0
    assert "0 of 1 hosts serve" in one.log
    dead = fleet.roll_out({"only": FakeHost("n100", None, fleet.model_data)})
    assert dead.code != 0
    assert "0 of 1 hosts serve" in dead.log
