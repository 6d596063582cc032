"""The lab's own hosts: what they are, that their limits hold, and that their power is real."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import fleet, processes
from lab.looks import CLASSES
from lab.paths import Lab, LabError
from tests.lab.own_lab import OwnLab, make_lab, remains

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def await_true(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"this did not happen: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("hardware", CLASSES)
def test_a_host_is_a_whole_system(own_lab: OwnLab, hardware: str) -> None:
    host = own_lab.host(hardware)
    assert own_lab.ask(host, "systemctl is-system-running") == "running"
    assert own_lab.ask(host, "cat /proc/1/comm") == "systemd"
    assert own_lab.ask(host, "hostname") == host.name
    assert own_lab.ask(host, "id -un; sudo -n id -un").split() == ["edge", "root"]
    assert (
        own_lab.ask(host, "for p in python3 curl; do command -v $p >/dev/null || echo $p; done")
        == ""
    )


def test_the_processors_and_the_memory_are_the_machines_own(own_lab: OwnLab) -> None:
    for host in own_lab.fleet.hosts:
        assert own_lab.ask(host, "nproc --all") == str(os.cpu_count())
        assert own_lab.ask(host, "cat /proc/cpuinfo | grep -c ^processor") == str(os.cpu_count())
        total = Path("/proc/meminfo").read_text().splitlines()[0]
        assert own_lab.ask(host, "head -1 /proc/meminfo") == total


def test_each_class_looks_like_itself(own_lab: OwnLab) -> None:
    product = "cat /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name"
    assert own_lab.ask(own_lab.host("n100"), product).split("\n") == ["AZW", "MINI S"]
    assert "UM780 XTX" in own_lab.ask(own_lab.host("ryzen"), product)
    for hardware in ("n100", "ryzen"):
        cmdline = own_lab.ask(own_lab.host(hardware), "cat /proc/cmdline")
        assert cmdline.startswith("BOOT_IMAGE=/boot/vmlinuz-")
        assert cmdline.endswith(" ro quiet")
        assert own_lab.ssh(own_lab.host(hardware), "ls /boot/firmware").returncode != 0

    pi = own_lab.host("pi5")
    model = own_lab.ask(pi, "od -An -c /sys/firmware/devicetree/base/model").split()
    assert "".join(model) == "RaspberryPi5ModelBRev1.0\\0"
    assert own_lab.ssh(pi, product).returncode != 0
    assert own_lab.ssh(pi, "ls /etc/default/grub /usr/sbin/update-grub").returncode != 0
    assert own_lab.ask(pi, "cat /proc/cmdline") == own_lab.ask(pi, "cat /boot/firmware/cmdline.txt")


def test_a_cpu_quota_throttles(own_lab: OwnLab) -> None:
    script = """
        sudo systemd-run --quiet --unit=busy --property=CPUQuota=20% sh -c 'while :; do :; done'
        group=system.slice/busy.service
        stat=$(ls /sys/fs/cgroup/$group/cpu.stat /sys/fs/cgroup/cpu/$group/cpu.stat 2>/dev/null)
        for try in $(seq 300); do
          throttled=$(awk '$1 == "nr_throttled" {print $2}' $stat)
          [ "$throttled" -lt 5 ] || break
          sleep 0.1
        done
        echo $throttled
        sudo systemctl stop busy
    """
    assert int(own_lab.ask(own_lab.host("n100"), script)) >= 5


def test_a_memory_limit_kills(own_lab: OwnLab) -> None:
    run = "sudo systemd-run --quiet --wait --unit=big --property=MemorySwapMax=0"
    greedy = "python3 -c 'bytearray(200 << 20)'"
    host = own_lab.host("ryzen")
    assert own_lab.ssh(host, f"{run} --property=MemoryMax=400M {greedy}").returncode == 0
    assert own_lab.ssh(host, f"{run} --property=MemoryMax=60M {greedy}").returncode != 0
    # With version 1 groups systemd sees the kernel's kill as a signal only.
    result = own_lab.ask(host, "systemctl show --property=Result --value big")
    assert result in {"oom-kill", "signal"}


def test_hosts_reach_each_other_and_the_outside(own_lab: OwnLab) -> None:
    n100, pi = own_lab.host("n100"), own_lab.host("pi5")
    greeting = f"exec 3<>/dev/tcp/{pi.address}/22; head -c 4 <&3"
    assert own_lab.ask(n100, f"bash -c '{greeting}'") == "SSH-"
    # The image was made from the same mirror, so it can be reached.
    assert "Err:" not in own_lab.ask(n100, "sudo apt-get update --error-on=any 2>&1")


def test_another_host_key_is_refused(own_lab: OwnLab, tmp_path: Path) -> None:
    n100, ryzen = own_lab.host("n100"), own_lab.host("ryzen")
    keys = {line.split()[0].split(",")[0]: line for line in own_lab.lab.known_hosts.open()}
    forged = tmp_path / "known_hosts"
    forged.write_text(keys[n100.address].replace(n100.address, ryzen.address))
    known = f"UserKnownHostsFile={own_lab.lab.known_hosts}"
    command = [
        word.replace(known, f"UserKnownHostsFile={forged}")
        for word in [*fleet.ssh_command(own_lab.lab, ryzen), "true"]
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_reboot_comes_back_with_the_command_line_of_its_boot_files(own_lab: OwnLab) -> None:
    host = own_lab.host("n100")
    before = own_lab.ask(host, BOOT_ID)
    drop_in = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT lab.test=1"'
    own_lab.ask(
        host,
        f"""sudo mkdir -p /etc/default/grub.d
        echo '{drop_in}' | sudo tee /etc/default/grub.d/99-test.cfg
        sudo update-grub
        ! grep lab.test /proc/cmdline""",
    )
    own_lab.ssh(host, "sudo systemctl reboot")
    await_true(lambda: own_lab.ssh(host, BOOT_ID).stdout.strip() not in ("", before), "a reboot")
    assert own_lab.ask(host, "cat /proc/cmdline").endswith(" ro quiet lab.test=1")
    # The clock of a host starts with the host, not with the machine under it.
    uptime = float(own_lab.ask(host, "cut -d' ' -f1 /proc/uptime"))
    assert uptime < float(Path("/proc/uptime").read_text().split()[0])
    assert host.powered


def test_a_power_cut_is_silent_and_power_returns_the_same_disk(own_lab: OwnLab) -> None:
    host = own_lab.host("pi5")
    before = own_lab.ask(host, "echo kept > ~/file; sync; " + BOOT_ID)
    fleet.power_off(own_lab.lab, host.name)
    assert not own_lab.host("pi5").powered
    # A host without power does not even refuse: nothing answers at its address.
    with socket.socket() as knock:
        knock.settimeout(1)
        assert knock.connect_ex((host.address, 22)) not in (0, errno.ECONNREFUSED)

    fleet.power_on(own_lab.lab, host.name)
    assert own_lab.host("pi5").powered
    assert own_lab.ask(host, "cat ~/file") == "kept"
    assert own_lab.ask(host, BOOT_ID) != before


def test_a_host_that_powers_itself_off_can_be_powered_on(own_lab: OwnLab) -> None:
    host = own_lab.host("ryzen")
    own_lab.ssh(host, "sudo systemctl poweroff")
    await_true(lambda: not own_lab.host("ryzen").powered, "the host powers itself off")
    fleet.power_on(own_lab.lab, host.name)
    assert own_lab.ask(host, "systemctl is-system-running") == "running"


def test_a_second_up_leaves_the_hosts_alone(own_lab: OwnLab) -> None:
    before = own_lab.fleet
    assert fleet.up(own_lab.lab) == before
    with pytest.raises(LabError, match="edge lab down"):
        fleet.up(own_lab.lab, hosts=2)
    assert own_lab.fleet == before


def test_an_unknown_host_is_named_with_those_that_exist(own_lab: OwnLab) -> None:
    with pytest.raises(LabError, match=own_lab.host("n100").name):
        fleet.power_off(own_lab.lab, "edge-n10")


@pytest.fixture
def other_lab(tmp_path: Path) -> Iterator[Lab]:
    lab = make_lab(f"o{os.getpid() % 1_000_000}", tmp_path)
    yield lab
    fleet.down(lab)


def test_down_leaves_nothing(other_lab: Lab) -> None:
    fleet.up(other_lab, hosts=5)
    assert remains(other_lab)
    fleet.down(other_lab)
    assert remains(other_lab) == []
    assert [path.name for path in other_lab.state.iterdir()] == ["lock"]
    fleet.down(other_lab)


def test_down_finds_what_a_crash_left_without_any_record(other_lab: Lab) -> None:
    made = fleet.up(other_lab, hosts=2)
    # A supervisor's death is its host's; the other host goes on, and the records are deleted.
    assert made.hosts[0].process is not None
    processes.kill_all([made.hosts[0].process.pid])
    shutil.rmtree(other_lab.state)
    assert remains(other_lab)
    fleet.down(other_lab)
    assert remains(other_lab) == []


def test_up_after_a_crash_makes_a_new_lab(other_lab: Lab) -> None:
    crashed = fleet.up(other_lab, hosts=1)
    crashed.hub.process.kill()
    made = fleet.up(other_lab, hosts=1)
    assert made.hub.process.alive
    assert made.hosts[0].powered
    assert not (crashed.hosts[0].process and crashed.hosts[0].process.alive)


def test_the_inventory_is_what_is_up(own_lab: OwnLab) -> None:
    done = pyinfra(own_lab.lab)
    assert done.returncode == 0, done.stderr
    hosts = {host["name"]: host for host in json.loads(done.stdout)}
    for host in own_lab.fleet.hosts:
        found = hosts.pop(host.name)
        assert found["groups"] == [host.hardware, "lab"]
        assert found["data"]["ssh_hostname"] == host.address
        assert found["data"]["ssh_strict_host_key_checking"] == "yes"
        assert found["data"]["hub_endpoint"] == own_lab.fleet.hub.endpoint
    assert not hosts


def test_the_inventory_of_no_lab_says_how_to_make_one(tmp_path: Path) -> None:
    done = pyinfra(Lab("none", tmp_path, tmp_path))
    assert done.returncode != 0
    assert "the lab is not up: run `edge lab up`" in done.stderr


def pyinfra(lab: Lab) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyinfra", "inventory/lab.py", "debug-inventory", "--json"]
    own = {"EDGE_LAB_NAME": lab.name, "EDGE_LAB_STATE": str(lab.state)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **own}
    )
