"""A machine that loses its power in the middle of a rollout boots, and the next run converges."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.lab.rollout import begin
from tests.vm.cuts import GRUB_CUTS, STEP_CUTS, Cut, set_trap, take_trap, watch
from tests.vm.machine import VmHost

PATIENCE_S = 900.0


def cut_power_at(machine: VmHost, cut: Cut) -> None:
    """Roll out until the moment, and let the machine die."""
    watcher = watch(machine, cut)
    with begin(machine.own) as run:
        end = time.monotonic() + PATIENCE_S
        while watcher.poll() is None and run.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        came, done = watcher.poll() is not None, run.poll() is not None
        machine.power_off()
        watcher.kill()
        run.kill()
        _, log = run.communicate()
    watcher.wait()
    assert came, f"the moment never came: {cut}\n{log}"
    assert not done, f"the rollout was over before the power went: {cut}\n{log}"


@pytest.mark.parametrize("cut", [*GRUB_CUTS, *STEP_CUTS], ids=str)
def test_a_power_cut_is_healed(fresh: Callable[[str], VmHost], cut: Cut) -> None:
    machine = fresh("n100")
    before = machine.boot_id()
    set_trap(machine, cut)
    cut_power_at(machine, cut)
    machine.power_on()
    assert machine.boot_id() != before
    take_trap(machine, cut)
    run = machine.rollout()
    assert run.code == 0, run.log
    assert "1 of 1 hosts serve" in run.log
    again = machine.rollout()
    assert again.code == 0, again.log
    assert again.changed == {}
