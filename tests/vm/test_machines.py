"""The lab's machines: what they are inside, that their boots and their power are real."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import fleet
from lab.machine.x86 import N100, RYZEN
from lab.tiers import TIERS
from tests.lab.own_lab import OwnLab
from tests.vm.machine import VmHost

LOOKS = {"n100": N100, "ryzen": RYZEN}
GOVERNORS = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


def await_true(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"this did not happen: {what}"
        time.sleep(0.1)


@pytest.fixture(params=["n100", "ryzen"])
def machine(request: pytest.FixtureRequest, machines: OwnLab) -> VmHost:
    return VmHost(machines, request.param)


def test_a_machine_is_a_whole_system_with_its_own_kernel(machine: VmHost) -> None:
    assert machine.ask("systemctl is-system-running") == "running"
    assert machine.ask("hostname") == machine.host.name
    assert machine.ask("id -un; sudo -n id -un").split() == ["edge", "root"]
    release = machine.ask("uname -r")
    assert release != Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert f"BOOT_IMAGE=/boot/vmlinuz-{release}" in machine.cmdline()
    assert machine.ask("stat -f -c %T /sys/fs/cgroup") == "cgroup2fs"
    assert "memory" in machine.ask("cat /sys/fs/cgroup/cgroup.controllers").split()
    # Nothing of the lab's own first boot is left.
    assert machine.ask("systemctl list-unit-files 'lab*' | grep -c lab || true") == "0"


def test_a_machine_looks_like_its_class(machine: VmHost) -> None:
    look = LOOKS[machine.hardware]
    shown = dict(line.split(":", 1) for line in machine.ask("lscpu").splitlines() if ":" in line)
    assert f"model-id={shown['Model name'].strip()}" in look.cpu
    assert f"vendor={shown['Vendor ID'].strip()}," in look.cpu
    assert int(shown["CPU(s)"]) == look.processors.count
    assert int(shown["Core(s) per socket"]) == look.processors.cores
    assert int(shown["Thread(s) per core"]) == look.processors.threads
    product = machine.ask("cat /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name")
    assert product.split("\n") == [look.dmi["manufacturer"], look.dmi["product"]]


def test_idle_states_and_frequencies_are_there(machine: VmHost) -> None:
    look = LOOKS[machine.hardware]
    assert machine.ask("cat /sys/devices/system/cpu/cpuidle/current_driver") == "acpi_idle"
    names = machine.ask("cat /sys/devices/system/cpu/cpu0/cpuidle/state*/name").split()
    assert names == ["POLL", "C1", "C2", "C3"]
    drivers = machine.ask("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_driver").split()
    assert drivers == ["acpi-cpufreq"] * look.processors.count
    listed = machine.ask("cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_available_frequencies")
    assert [int(khz) // 1000 for khz in listed.split()] == [s.mhz for s in look.pstates]


def test_a_governor_reaches_the_hardware(machine: VmHost) -> None:
    look = LOOKS[machine.hardware]
    machine.root(f"for policy in {GOVERNORS}; do echo schedutil > $policy; done")
    machine.root(f"for policy in {GOVERNORS}; do echo performance > $policy; done")
    assert last_asked(machine) == {look.pstates[0].code}
    slowest = look.pstates[-1]
    top = "/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"
    machine.root(f"for policy in {top}; do echo {slowest.mhz * 1000} > $policy; done")
    assert last_asked(machine) == {slowest.code}
    machine.root(f"for policy in {top}; do echo {look.pstates[0].mhz * 1000} > $policy; done")
    assert last_asked(machine) == {look.pstates[0].code}


def last_asked(machine: VmHost) -> set[int]:
    """The newest bytes that the processors' P-state controls received."""
    received = machine.pstates()
    assert len(received) == LOOKS[machine.hardware].processors.count
    return {data[-1] for data in received}


def test_resumed_machines_are_different_hosts(n100: VmHost, ryzen: VmHost) -> None:
    for what in ("cat /etc/machine-id", "hostname", "cat /etc/ssh/ssh_host_ed25519_key.pub"):
        assert n100.ask(what) != ryzen.ask(what)
    key = n100.ask("cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub")
    assert f" {key}\n" in n100.own.lab.known_hosts.read_text()
    # Another's key is refused, as with every host of the lab.
    line = next(x for x in n100.own.lab.known_hosts.open() if x.startswith(n100.host.address))
    forged = n100.directory / "forged"
    forged.write_text(line.replace(n100.host.address, ryzen.host.address))
    known = f"UserKnownHostsFile={n100.own.lab.known_hosts}"
    command = [
        word.replace(known, f"UserKnownHostsFile={forged}")
        for word in [*fleet.ssh_command(ryzen.own.lab, ryzen.host), "true"]
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Host key verification failed" in done.stderr


def test_two_of_one_class_share_nothing_but_the_class(fresh: Callable[[str], VmHost]) -> None:
    one, other = fresh("n100"), fresh("n100")
    for what in ("cat /etc/machine-id", "hostname", "cat /etc/ssh/ssh_host_ed25519_key.pub"):
        assert one.ask(what) != other.ask(what)
    # Both went on from the same memory; the kernel's randomness is drawn anew.
    draw = "head -c 16 /dev/urandom | od -An -tx1"
    assert one.ask(draw) != other.ask(draw)
    # The clock is right at once, however old the frozen memory is.
    asked = time.time()
    assert asked - 1 <= float(one.ask("date +%s.%N")) <= time.time() + 1
    # And the journal goes on, filed under the host's own id.
    one.root("logger -t lab-test of-this-host")
    await_true(lambda: "of-this-host" in one.root("journalctl -t lab-test -o cat"), "a journal")


def test_machines_reach_each_other_and_the_outside(n100: VmHost, ryzen: VmHost) -> None:
    greeting = f"exec 3<>/dev/tcp/{ryzen.host.address}/22; head -c 4 <&3"
    assert n100.ask(f"bash -c '{greeting}'") == "SSH-"
    # The image was made from the same mirror, so it can be reached.
    address = n100.ask("grep -ho 'http[^ ]*' /etc/apt/sources.list | head -1")
    assert (
        n100.ask(f"curl -sS -o /dev/null -w '%{{http_code}}' {address}/dists/trixie/Release")
        == "200"
    )


def test_a_reboot_boots_by_grub_from_what_the_disk_says(n100: VmHost) -> None:
    drop_in = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT lab.test=1"'
    before = n100.files("/boot", "/etc/default")
    n100.root(f"echo '{drop_in}' > /etc/default/grub.d/99-test.cfg; update-grub")
    assert "lab.test=1" not in n100.cmdline()
    n100.reboot()
    assert "lab.test=1" in n100.cmdline()
    n100.root("rm /etc/default/grub.d/99-test.cfg; update-grub")
    n100.reboot()
    assert "lab.test=1" not in n100.cmdline()
    # The first grub.cfg was update-grub's own too.
    assert n100.files("/boot", "/etc/default") == before


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(ryzen: VmHost) -> None:
    before = ryzen.boot_id()
    # Nothing may reach the disk by itself in the seconds up to the cut.
    ryzen.root(
        """
        sysctl -qw vm.dirty_writeback_centisecs=0
        mount -o remount,commit=600 /
        seq 100000 > /root/synced
        sync
        seq 100000 > /root/not-synced
        """
    )
    ryzen.power_off()
    assert not ryzen.host.powered
    # A host without power does not even refuse: nothing answers at its address.
    with socket.socket() as knock:
        knock.settimeout(1)
        with pytest.raises(TimeoutError):
            knock.connect((ryzen.host.address, 22))
    ryzen.power_on()
    assert ryzen.boot_id() not in ("", before)
    assert ryzen.root("seq 100000 | cmp - /root/synced && echo whole") == "whole"
    assert ryzen.root("cat /root/not-synced 2>/dev/null || true") == ""
    assert ryzen.ask("systemctl is-system-running") == "running"


def test_a_machine_that_powers_itself_off_can_be_powered_on(n100: VmHost) -> None:
    before = n100.boot_id()
    n100.ssh("sudo systemctl poweroff")
    await_true(lambda: not n100.host.powered, "the machine powers itself off")
    n100.power_on()
    assert n100.boot_id() not in ("", before)


def test_a_second_up_leaves_the_machines_alone(machines: OwnLab) -> None:
    before = machines.fleet
    assert fleet.up(machines.lab, ["n100", "ryzen"], TIERS["vm"]) == before
