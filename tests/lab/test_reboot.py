"""Reboots of real hosts: in turn, into what their boot files hold, and stopped by one that is lost.

Three Raspberry Pis whose operator has written half of what edge-llm asks of their kernels, and has
not rebooted since: their kernels run without it, whatever this machine's own has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
import requests

from lab import fleet as lab_fleet
from lab.record import Host
from tests.lab.own_lab import OwnLab, lab_up
from tests.lab.rollout import Run, begin, data, deploy
from tests.lab.test_rollout import await_true

TOKENS = ("cgroup_enable=memory", "cgroup_memory=1")
IF_NEEDED = data(reboot="if_needed")
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def running(lab: OwnLab, host: Host) -> list[str]:
    """The words of /proc/cmdline."""
    return lab.ask(host, "cat /proc/cmdline").split()


def boot_ids(lab: OwnLab) -> list[str]:
    return [lab.ask(host, BOOT_ID) for host in lab.fleet.hosts]


@dataclass(frozen=True)
class Rebooted:
    """The hosts after one rollout from bare with reboots, and what they were before."""

    lab: OwnLab
    run: Run
    before: list[str]


@pytest.fixture(scope="module")
def pis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebooted]:
    with lab_up("r", tmp_path_factory.mktemp("lab"), ["pi5", "pi5", "pi5"]) as lab:
        for host in lab.fleet.hosts:
            lab.ask(host, f"sudo sed -i 's/$/ {TOKENS[0]}/' /boot/firmware/cmdline.txt")
        before = boot_ids(lab)
        yield Rebooted(lab, deploy(lab, *IF_NEEDED), before)


def test_each_host_is_rebooted_into_what_was_asked(pis: Rebooted) -> None:
    assert pis.run.code == 0, pis.run.log
    assert "3 of 3 hosts serve and are as they should be" in pis.run.log
    assert not set(boot_ids(pis.lab)) & set(pis.before)
    for host in pis.lab.fleet.hosts:
        assert set(TOKENS) <= set(running(pis.lab, host))
        log = (pis.lab.lab.host_dir(host.name) / "supervisor.log").read_text()
        assert log.count(", a reboot") == 1


def test_never_two_at_a_time(pis: Rebooted) -> None:
    """By the hosts' own journals: from the last word of the old boot to the engine's start."""
    away = []
    for host in pis.lab.fleet.hosts:
        down = pis.lab.ask(host, "sudo journalctl -b -1 -n 1 -o json --output-fields=MESSAGE")
        up = pis.lab.ask(
            host, "sudo journalctl -b 0 -u llama-server -n 1 -o json --output-fields=MESSAGE"
        )
        stamps = [int(json.loads(line)["__REALTIME_TIMESTAMP"]) for line in (down, up)]
        assert stamps[0] < stamps[1]
        away.append(stamps)
    for (_, up_again), (goes_down, _) in pairwise(away):
        assert up_again < goes_down


def test_a_second_run_changes_nothing(pis: Rebooted) -> None:
    before = boot_ids(pis.lab)
    run = deploy(pis.lab, *IF_NEEDED)
    assert run.code == 0, run.log
    assert run.changed == {}
    assert boot_ids(pis.lab) == before


def test_a_host_that_stays_away_stops_the_next(pis: Rebooted) -> None:
    lab, (_, lost, spared) = pis.lab, pis.lab.fleet.hosts
    for host in (lost, spared):  # kernels that run without it again, as if started by other files
        lab.ask(
            host,
            "sed 's/ cgroup[^ ]*//g' /proc/cmdline > /tmp/cmdline; "
            "sudo mount --bind /tmp/cmdline /proc/cmdline",
        )
    before = lab.ask(spared, BOOT_ID)
    with begin(lab, *IF_NEEDED, *data(reboot_timeout_s=5)) as run:
        assert run.stderr is not None
        log = ""
        for line in run.stderr:
            log += line
            if f"[{lost.name}] Rebooting" in line:
                lab_fleet.power_off(lab.lab, lost.name)
    assert run.returncode == 1
    assert f"{lost.name}: FAILED: rebooted, and did not come back within 5 s" in log, log
    assert f"{spared.name}: FAILED: not rebooted, because {lost.name} did not come back" in log
    assert "1 of 3 hosts serve and are as they should be" in log
    assert lab.ask(spared, BOOT_ID) == before

    # Nor is it rebooted by any run that comes after one which rebooted it in vain.
    lab.ask(spared, f"{BOOT_ID} | sudo tee /var/lib/edge-llm/reboot-in-vain")
    again = deploy(lab, "--limit", spared.name, *IF_NEEDED)
    assert again.code == 1
    assert "not rebooted, because the last reboot for it was in vain" in again.log
    assert lab.ask(spared, BOOT_ID) == before


def test_an_answer_is_ended_before_the_host_goes_down(pis: Rebooted) -> None:
    lab, host = pis.lab, pis.lab.fleet.hosts[0]
    before = lab.ask(host, BOOT_ID)
    body = {"prompt": "Tell a long story about the sea.", "max_tokens": 250, "temperature": 0}
    url = f"http://{host.address}:8000/chat"
    with requests.post(url, json=body, headers=lab.headers, stream=True, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith(b"data: "))
        next(lines)
        lab.ssh(host, "sudo systemctl reboot")
        rest = [json.loads(line[6:]) for line in lines]
    assert len(rest) > 50  # it had only begun
    assert rest[-1]["done"] is True
    await_true(lambda: lab.ssh(host, BOOT_ID).stdout.strip() not in ("", before), "a reboot")
