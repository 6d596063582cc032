"""A lab of machines goes completely, however it ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cgroup, fleet, processes
from lab.paths import Lab
from lab.tiers import TIERS
from tests.lab.own_lab import make_lab, remains

VM = TIERS["vm"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = make_lab(f"y{os.getpid() % 1_000_000}", tmp_path)
    yield lab
    fleet.down(lab)


def test_down_leaves_nothing(lab: Lab) -> None:
    fleet.up(lab, ["n100"], VM)
    assert remains(lab)
    fleet.down(lab)
    assert remains(lab) == []
    assert [path.name for path in lab.state.iterdir()] == ["lock"]


def test_a_machine_ends_with_its_supervisor(lab: Lab) -> None:
    made = fleet.up(lab, ["n100"], VM)
    (host,) = made.hosts
    running = [p for pid in cgroup.of_host(host.name).pids() if (p := processes.Process.of(pid))]
    assert len(running) >= 2  # the supervisor and QEMU at least
    assert host.process is not None
    processes.kill_all([host.process.pid])
    processes.wait_gone(running)


def test_down_after_everything_was_killed_and_its_records_lost(lab: Lab) -> None:
    made = fleet.up(lab, ["n100"], VM)
    processes.kill_all([*cgroup.of_host(made.hosts[0].name).pids(), made.hub.process.pid])
    shutil.rmtree(lab.state)
    assert remains(lab)
    fleet.down(lab)
    assert remains(lab) == []


def test_up_after_a_crash_makes_a_new_lab(lab: Lab) -> None:
    crashed = fleet.up(lab, ["n100"], VM)
    assert crashed.hosts[0].process is not None
    processes.kill_all([crashed.hosts[0].process.pid, crashed.hub.process.pid])
    made = fleet.up(lab, ["n100"], VM)
    assert made.hosts[0].powered
    assert made.hub.process.alive
