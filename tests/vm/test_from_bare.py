"""From a bare machine to a verified one, over a reboot: what the kernel itself says then."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.fleet import CHECKOUT
from lab.tiers import TIERS
from tests.lab.own_lab import lab_up
from tests.lab.rollout import Run, environment, main_pid
from tests.vm.machine import VmHost

EDGE = Path(sys.executable).with_name("edge")
CPU = "/sys/devices/system/cpu"
X86 = ("n100", "ryzen")
FASTEST = b"\x10"  # P0 in lab/machine/acpi.py


@pytest.fixture(scope="module", params=X86)
def hardware(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def machine(hardware: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VmHost]:
    """A machine just resumed, for all tests of this file."""
    with lab_up("b", tmp_path_factory.mktemp("bare"), [hardware], TIERS["vm"]) as own:
        yield VmHost(own, hardware)


@pytest.fixture(scope="module")
def found(machine: VmHost) -> dict[str, str]:
    """The machine before anything was done to it, booted as its own boot loader does it."""
    machine.power_cut()
    return {
        "boot id": machine.ask("cat /proc/sys/kernel/random/boot_id"),
        "cmdline": machine.ask("cat /proc/cmdline"),
        "governors": machine.ask(f"cat {CPU}/cpufreq/policy*/scaling_governor"),
        "states": machine.ask(f"cat {CPU}/cpu0/cpuidle/state*/name"),
    }


@pytest.fixture(scope="module")
def served(machine: VmHost, found: dict[str, str]) -> Run:
    """The one rollout, with its reboot."""
    run = machine.rollout(reboot="if_needed")
    assert run.code == 0, run.log
    return run


@pytest.fixture(autouse=True)
def _provisioned(served: Run) -> None:
    """Every test here looks at the machine after its reboot."""


def test_it_was_rebooted_once(machine: VmHost, found: dict[str, str]) -> None:
    boots = machine.ask("sudo journalctl --list-boots -q --no-pager").splitlines()
    assert machine.ask("cat /proc/sys/kernel/random/boot_id") != found["boot id"]
    assert len(boots) == 2


def test_the_command_line_has_ours_and_all_that_was_there(
    machine: VmHost, found: dict[str, str]
) -> None:
    words, former = machine.ask("cat /proc/cmdline").split(), found["cmdline"].split()
    assert [word for word in words if word in former] == former
    assert [word for word in words if word not in former] == ["processor.max_cstate=1"]


def test_only_the_shallow_idle_states_are_left(machine: VmHost, found: dict[str, str]) -> None:
    assert found["states"].split() == ["POLL", "C1", "C2", "C3"]
    every = machine.ask(f"for c in {CPU}/cpu[0-9]*; do cat $c/cpuidle/state*/name; done")
    assert set(every.split()) == {"POLL", "C1"}


def test_the_governor_is_performance_on_every_processor(
    machine: VmHost, found: dict[str, str]
) -> None:
    assert "performance" not in found["governors"]
    now = machine.ask(f"cat {CPU}/cpu[0-9]*/cpufreq/scaling_governor").split()
    assert now == ["performance"] * len(now)
    assert len(now) == int(machine.ask("nproc"))


def test_the_hardware_was_told_to_run_at_its_fastest(machine: VmHost) -> None:
    told = machine.pstates()
    assert len(told) == int(machine.ask("nproc"))
    assert all(each.endswith(FASTEST) for each in told), told


def test_a_process_over_the_memory_limit_is_killed_and_the_service_comes_back(
    machine: VmHost, hardware: str
) -> None:
    group = "/sys/fs/cgroup" + machine.ask("systemctl show -P ControlGroup llama-server.service")
    limit = int(machine.ask(f"cat {group}/memory.max"))
    before = main_pid(machine.own, hardware, "llama-server")
    # It joins the engine's group and takes what the group may have, and then more.
    done = machine.ssh(
        f"sudo sh -c 'echo $$ > {group}/cgroup.procs && exec python3 -c "
        f'"held = []\nwhile True: held.append(bytearray(b\\"x\\" * 2**24))"\' ',
    )
    assert done.returncode == 128 + 9, done.stderr
    events = machine.ask("sudo journalctl -k -b -q --no-pager -g 'Memory cgroup out of memory'")
    assert "Killed process" in events
    await_serving(machine)
    assert main_pid(machine.own, hardware, "llama-server") != before
    assert int(machine.ask(f"cat {group}/memory.max")) == limit


def await_serving(machine: VmHost, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while machine.ssh("curl -sf http://127.0.0.1:8000/readyz").returncode != 0:
        assert time.monotonic() < end, f"{machine.host.name} does not serve"


def test_the_processor_quota_holds(machine: VmHost, hardware: str) -> None:
    group = "/sys/fs/cgroup" + machine.ask("systemctl show -P ControlGroup llama-server.service")
    quota, period = map(int, machine.ask(f"cat {group}/cpu.max").split())
    # One loop more than the quota has processors keeps them all busy.
    loops = quota // period + 1
    throttled = machine.ask(
        f"""sudo sh -s <<'BUSY'
        read_it() {{ awk '$1 == "nr_throttled" {{ print $2 }}' {group}/cpu.stat; }}
        before=$(read_it)
        for i in $(seq {loops}); do
          sh -c 'echo $$ > {group}/cgroup.procs; exec timeout 20 sh -c "while :; do :; done"' &
        done
        wait
        echo $(( $(read_it) - before ))
BUSY""",
    )
    assert int(throttled) > 0


def test_it_verifies(machine: VmHost) -> None:
    key = str(machine.own.lab.api_key)
    done = subprocess.run(
        [EDGE, "verify", "--quiet", "--key-file", key, "inventory/lab.py"],
        cwd=CHECKOUT, env=environment(machine.own), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_run_changes_nothing(machine: VmHost) -> None:
    run = machine.rollout(reboot="if_needed")
    assert run.code == 0, run.log
    assert run.changed == {}
