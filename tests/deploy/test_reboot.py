"""A reboot is never a surprise: who is rebooted, in what order, and what stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import Fleet
from tests.deploy.device import DEVICES, Device
from tests.deploy.rebooting import Machine, machine
from tests.deploy.rollout import CHECKOUT, FakeHost, Run, run_pyinfra, write_inventory

REBOOT = "Reboot | One host at a time"
WAITING = "intel_idle.max_cstate=1 processor.max_cstate=1"
IF_NEEDED = ("--data", "reboot=if_needed")


def not_yet_booted(fleet: Fleet, group: str = "n100") -> Device:
    """A device after a rollout whose kernel runs as before it."""
    before = DEVICES[group].sections
    device = fleet.converged(group).having(cmdline=before["cmdline"])
    return device.having(cgroup=before["cgroup"])


@dataclass(frozen=True)
class Ran:
    """A run, what the machines went through in order, and the machines."""

    run: Run
    log: Sequence[tuple[str, str]]
    machines: Mapping[str, Machine]

    def last_word(self, host: str) -> str:
        lines = (row for row in self.run.log.splitlines() if row.startswith(f"{host}: "))
        return next(row for row in lines if ": note: " not in row)


def ran(fleet: Fleet, folder: Path, hosts: Mapping[str, Mapping[str, Any]], *options: str) -> Ran:
    """Roll out with reboot = if_needed to hosts of which each differs in what is given."""
    device, log = not_yet_booted(fleet), list[tuple[str, str]]()
    booted = fleet.converged("n100").sections["cmdline"]
    with ExitStack() as stack:
        machines, real = {}, {}
        for name, given in hosts.items():
            how = dict(given)
            settings = how.pop("data", {})
            made, data = stack.enter_context(
                machine(folder, name, how.pop("device", device), how.pop("next", booted), log,
                        **how)
            )  # fmt: skip
            machines[name] = made
            real[name] = {**fleet.model_data, **data, **settings}
        run = fleet.roll_out({}, *IF_NEEDED, *options, real=real)
    return Ran(run, log, machines)


@pytest.fixture(scope="module")
def stopped(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """a and b are well, c does not come back, d would be next; e needs no reboot."""
    data = {"reboot_timeout_s": 5}
    settled = fleet.converged("n100")
    return ran(
        fleet,
        tmp_path_factory.mktemp("machines"),
        {
            "a": {"slow_start": 2},
            "b": {"data": {"ssh_user": "edge", "_sudo": True, "_sudo_password": "secret"}},
            "c": {"comes_back": False, "data": data},
            "d": {},
            "e": {"device": settled},
        },
    )


def test_hosts_are_rebooted_one_after_the_other_as_the_inventory_lists_them(stopped: Ran) -> None:
    whole = ("down", "up", "green")
    assert stopped.log == [*(("a", each) for each in whole), *(("b", each) for each in whole),
                           ("c", "down")]  # fmt: skip


def test_a_host_is_rebooted_once_and_serves_again(stopped: Ran) -> None:
    for host in "ab":
        assert stopped.machines[host].boots == 1
        assert f"{host}: rebooted, serves again after " in stopped.last_word(host)
        assert f"in effect: {WAITING}" in stopped.last_word(host)


def test_a_host_that_stays_away_is_named_and_stops_the_next(stopped: Ran) -> None:
    assert stopped.run.code != 0
    assert "c: FAILED: rebooted, and did not come back within 5 s" in stopped.last_word("c")
    assert stopped.machines["d"].boots == 0
    word = stopped.last_word("d")
    assert "d: FAILED: not rebooted, because c did not come back within 5 s" in word
    assert f"It serves; takes effect at the next boot: {WAITING}" in word
    assert "3 of 5 hosts serve and are as they should be." in stopped.run.log
    assert "Traceback" not in stopped.run.log


def test_a_converged_host_is_asked_nothing_more(stopped: Ran) -> None:
    assert len(stopped.machines["e"].server.commands) == 2
    assert stopped.machines["e"].boots == 0


def test_a_password_for_sudo_is_given_anew_after_the_boot(stopped: Ran) -> None:
    commands = stopped.machines["b"].server.commands
    assert any("/askpass-0-" in command for command in commands)
    assert any("/askpass-1-" in command and "probe" in command for command in commands)


def test_a_host_that_comes_back_dumb_stops_the_next(fleet: Fleet, tmp_path: Path) -> None:
    done = ran(fleet, tmp_path, {"a": {"serves": False}, "b": {}})
    assert done.run.code != 0
    assert "rebooted, and came back, but does not serve: llama-server is failed" in done.last_word(
        "a"
    )
    assert "  | no model" in done.run.log
    assert "not rebooted, because a came back, but does not serve" in done.last_word("b")
    assert [host for host, what in done.log if what == "down"] == ["a"]


def test_a_reboot_that_changed_nothing_is_not_repeated(fleet: Fleet, tmp_path: Path) -> None:
    """Not on the next host, nor with --retry on the same one; here, one after the other."""
    same = {"next": DEVICES["n100"].sections["cmdline"]}
    done = ran(
        fleet, tmp_path, {"a": same, "b": same}, "--serial", "--retry", "1", "--retry-delay", "0",
    )  # fmt: skip
    assert done.run.code != 0
    ((first, _),) = [row for row in done.log if row[1] == "down"]  # --serial has no order
    other = {"a": "b", "b": "a"}[first]
    assert f"came back without what it was rebooted for: {WAITING}" in done.last_word(first)
    assert f"not rebooted, because {first} came back without what" in done.last_word(other)
    # The next run is told by the host itself.
    assert any(
        "boot_id > /var/lib/edge-llm/reboot-in-vain" in command
        for command in done.machines[first].server.commands
    )


@pytest.fixture(scope="module")
def fakes(fleet: Fleet) -> Run:
    """Hosts of which none may go down."""
    device = not_yet_booted(fleet)
    own = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lost = device.having(grub_cfg=DEVICES["n100"].sections["grub_cfg"])
    hosts = {
        "never": fleet.host(device, "n100", reboot="never"),
        "pi": fleet.host(not_yet_booted(fleet, "pi5"), "pi5", reboot="never"),
        "settled": fleet.host(fleet.converged("n100"), "n100", reboot="if_needed"),
        "vain": fleet.host(lost, "n100", reboot="if_needed"),
        "self": fleet.host(device.having(boot_id=own), "n100", reboot="if_needed"),
    }
    return fleet.roll_out(hosts)


def last_word(run: Run, host: str) -> str:
    (line,) = (row for row in run.log.splitlines() if row.startswith(f"@fake/{host}: "))
    return line


def test_nobody_goes_down_unasked(fakes: Run) -> None:
    told = {host: fakes.told(host) for host in ("never", "pi", "settled", "vain", "self")}
    assert not [each for execs in told.values() for each in execs if "reboot" in each.command]
    assert [len(told[host]) for host in ("never", "pi", "settled")] == [2, 2, 2]


def test_never_says_once_what_the_next_boot_brings(fakes: Run) -> None:
    assert last_word(fakes, "never").endswith(f": takes effect at the next boot: {WAITING}")
    tokens = "cgroup_enable=memory cgroup_memory=1"
    lines = [row for row in fakes.log.splitlines() if tokens in row]
    (line,) = lines
    assert line == (
        f"@fake/pi: takes effect at the next boot: {tokens} (memory limits are not enforced until "
        "then)"
    )
    assert fakes.log.count("not enforced") == 1
    assert fakes.failed("never") == fakes.failed("pi") == []


def test_a_reboot_that_would_be_in_vain_is_not_done(fakes: Run) -> None:
    assert fakes.failed("vain") == [REBOOT]
    assert (
        f"not rebooted, because it would be in vain, /boot/grub/grub.cfg does not hold {WAITING}"
        in last_word(fakes, "vain")
    )


def test_the_controllers_own_kernel_is_never_rebooted(fakes: Run) -> None:
    assert fakes.failed("self") == [REBOOT]
    assert "reboot that one yourself" in last_word(fakes, "self")


def test_a_dry_run_shows_who_would_be_rebooted(fleet: Fleet, tmp_path: Path) -> None:
    hosts = {
        "due": fleet.host(not_yet_booted(fleet), "n100"),
        "settled": fleet.host(fleet.converged("n100"), "n100"),
    }
    inventory = write_inventory(tmp_path, hosts)
    done = run_pyinfra(["--dry", *IF_NEEDED, str(inventory), "deploy.py"])
    assert done.returncode == 0
    (line,) = (row for row in done.stderr.splitlines() if "rebooted" in row)
    assert "[@fake/due]" in line
    assert f"will be rebooted once it serves; takes effect at the next boot: {WAITING}" in line


def test_ctrl_c_says_which_host_is_in_reboot(fleet: Fleet, tmp_path: Path) -> None:
    log = list[tuple[str, str]]()
    host: FakeHost = fleet.host(fleet.converged("n100"), "n100")
    with machine(tmp_path, "gone", not_yet_booted(fleet), "", log, comes_back=False) as (_, data):
        inventory = write_inventory(
            tmp_path / "fleet", {"settled": host}, {"gone": {**fleet.model_data, **data}}
        )
        with subprocess.Popen(
            [sys.executable, "-m", "pyinfra", "-y", *IF_NEEDED, str(inventory), "deploy.py"],
            cwd=CHECKOUT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        ) as run:  # fmt: skip
            end = time.monotonic() + 60
            while not log and time.monotonic() < end:
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            said = run.communicate(timeout=60)[1]
    assert run.returncode == 130
    assert "gone: FAILED: in reboot: this run did not wait for its end" in said
    assert "1 of 2 hosts serve" in said
