"""The arm64 machine: a Raspberry Pi 5 to software, and an engine that really runs on it.

Its image takes 20 minutes to make, so these tests run where it is in the cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from edge.fleet import CHECKOUT
from lab.machine import pi_image
from lab.machine.pi_tree import FREQUENCIES_MHZ, MODEL
from lab.tiers import TIERS
from tests.lab.own_lab import lab_up, make_lab
from tests.lab.rollout import Run, environment
from tests.vm.machine import VmHost

EDGE = Path(sys.executable).with_name("edge")
CMDLINE = "/boot/firmware/cmdline.txt"
CONTROLLERS = "cat /sys/fs/cgroup/cgroup.controllers"


@pytest.fixture(scope="module")
def pi5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VmHost]:
    """A bare Pi 5, up for this file."""
    state = tmp_path_factory.mktemp("pi5")
    if pi_image.cached(make_lab("p", state)) is None:
        pytest.skip("the arm64 machine's image is not in the cache: make test-vm-arm64 makes it")
    with lab_up("p", state, ["pi5"], TIERS["vm"]) as own:
        yield VmHost(own, "pi5")


@dataclass(frozen=True)
class Provisioned:
    """The Pi 5 after its rollout, which rebooted it; `controllers` and `boot` are of before."""

    machine: VmHost
    run: Run
    controllers: list[str]
    boot: str


@pytest.fixture(scope="module")
def provisioned(pi5: VmHost) -> Provisioned:
    controllers, boot = pi5.ask(CONTROLLERS).split(), pi5.boot_id()
    run = pi5.rollout(reboot="if_needed")
    assert run.code == 0, run.log
    return Provisioned(pi5, run, controllers, boot)


def test_software_sees_a_pi_5(pi5: VmHost) -> None:
    assert pi5.ask("systemctl is-system-running") == "running"
    assert pi5.ask("uname -m; getconf PAGE_SIZE; nproc").split() == ["aarch64", "16384", "4"]
    assert pi5.ask("tr -d '\\0' < /proc/device-tree/model") == MODEL
    policy = "/sys/devices/system/cpu/cpufreq/policy0"
    assert pi5.ask(f"cat {policy}/scaling_driver {policy}/affected_cpus").split() == [
        "cpufreq-dt",
        *"0123",
    ]
    listed = pi5.ask(f"cat {policy}/scaling_available_frequencies").split()
    assert [int(khz) // 1000 for khz in listed] == list(FREQUENCIES_MHZ)
    assert pi5.ask("cat /sys/devices/system/cpu/cpuidle/current_driver") == "none"
    assert pi5.ask("vcgencmd get_throttled") == "throttled=0x0"


def test_its_boot_partition_is_fat(pi5: VmHost) -> None:
    assert pi5.ask("findmnt -no FSTYPE /boot/firmware") == "vfat"
    assert pi5.root(f"chown edge {CMDLINE} 2>/dev/null && echo taken || echo refused") == "refused"
    assert pi5.root(f"chmod 0600 {CMDLINE}; stat -c %a {CMDLINE}") == "755"
    assert "moved to /boot/firmware/cmdline.txt" in pi5.ask("cat /boot/cmdline.txt")


def test_the_next_boot_uses_the_line_in_cmdline_txt(pi5: VmHost) -> None:
    line = pi5.ask(f"cat {CMDLINE}")
    # A Pi's firmware names the serial port.
    own = line.replace("serial0", "ttyAMA0").split()
    assert pi5.cmdline()[-len(own) :] == own
    pi5.root(f"sed -i 's/$/ lab.test=1/' {CMDLINE}")
    assert "lab.test=1" not in pi5.cmdline()
    pi5.reboot()
    assert pi5.cmdline()[-len(own) - 1 :] == [*own, "lab.test=1"]
    pi5.root(f"sed -i 's/ lab.test=1$//' {CMDLINE}; sync")
    pi5.power_cut()
    assert pi5.cmdline()[-len(own) :] == own
    assert pi5.ask(f"cat {CMDLINE}") == line


def test_the_rollout_turns_memory_limits_on_by_a_reboot(provisioned: Provisioned) -> None:
    machine = provisioned.machine
    assert "memory" not in provisioned.controllers
    assert machine.boot_id() != provisioned.boot
    assert {"cgroup_enable=memory", "cgroup_memory=1"} <= set(machine.cmdline())
    assert "memory" in machine.ask(CONTROLLERS).split()
    group = machine.ask("systemctl show -P ControlGroup llama-server.service")
    limit = machine.ask("systemctl show -P MemoryMax llama-server.service")
    assert machine.ask(f"cat /sys/fs/cgroup{group}/memory.max") == limit
    # One line, in which what was there keeps its place, and a copy of it.
    line = machine.ask(f"cat {CMDLINE}")
    assert len(line.splitlines()) == 1
    assert line.startswith("console=serial0,115200 console=tty1 root=PARTUUID=")


def test_the_engine_is_the_processor_s_own(provisioned: Provisioned) -> None:
    pid = provisioned.machine.ask("systemctl show -P MainPID llama-server.service")
    loaded = provisioned.machine.root(
        f"grep -o 'libggml-cpu-[^ ]*' /proc/{pid}/maps | sort -u; getconf PAGE_SIZE"
    ).split()
    # Cortex-A76: Armv8.2 with half precision and the dot product.
    assert loaded == ["libggml-cpu-armv8.2_2.so", "16384"]


def test_the_proxy_streams_an_answer(provisioned: Provisioned) -> None:
    machine = provisioned.machine
    texts, last = [], {}
    with requests.post(
        f"http://{machine.host.address}:8000/chat",
        json={"prompt": "Say something.", "max_tokens": 8},
        headers=machine.own.headers,
        stream=True,
        timeout=120,
    ) as answer:
        assert answer.status_code == 200, answer.text
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                last = json.loads(line.removeprefix(b"data: "))
                texts.append(last.get("text", ""))
    assert last["done"] is True
    assert last["usage"]["completion_tokens"] == 8
    assert len([text for text in texts if text.strip()]) > 1


def test_a_weak_supply_now_fails_and_one_of_before_warns(provisioned: Provisioned) -> None:
    checks = verify(provisioned.machine, throttled=0x50000)
    assert checks.failed == []
    assert checks.code == 0
    assert "since the last boot there was: under-voltage, throttled" in checks.said
    checks = verify(provisioned.machine, throttled=0x50005)
    assert checks.failed == ["power: is not throttled"]
    assert checks.code == 1
    assert "under-voltage, throttled" in checks.said
    provisioned.machine.root(f"echo 0x0 > {pi_image.THROTTLED}")


@dataclass(frozen=True)
class Checks:
    """What `edge verify` said of one host."""

    code: int
    said: str

    @property
    def failed(self) -> list[str]:
        # HOST  CHECK  FAILED; the line that sums a host up has no check.
        rows = (line.split("  ") for line in self.said.splitlines())
        return [row[1] for row in rows if len(row) > 2 and row[2].startswith("FAILED")]


def verify(machine: VmHost, throttled: int) -> Checks:
    machine.root(f"echo {throttled:#x} > {pi_image.THROTTLED}")
    done = subprocess.run(
        [str(EDGE), "verify", "inventory/lab.py"],
        cwd=CHECKOUT,
        env=environment(machine.own),
        capture_output=True,
        text=True,
        check=False,
    )
    return Checks(done.returncode, done.stdout + done.stderr)
