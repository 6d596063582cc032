"""The kernel command line: which host's is written, and what waits for the next boot."""

from __future__ import annotations

import pytest

from edge.boot import BootPlan, plan_boot
from edge.plan_text import _boot
from tests.unit.recorded import survey_of

MEMORY = ("cgroup_enable=memory", "cgroup_memory=1")
IDLE = ("intel_idle.max_cstate=2", "processor.max_cstate=1")


def boot(name: str, *asked: str) -> BootPlan:
    survey = survey_of(name)
    return plan_boot(
        asked, survey.boot, cmdline=survey.cmdline, dt_model=survey.dt_model, kernel=survey.kernel
    )


def test_what_the_kernel_has_does_not_wait_for_a_boot() -> None:
    assert boot("n100", *IDLE).pending == IDLE
    assert boot("provisioned", *IDLE).pending == ()
    assert boot("pi5-4gb", *MEMORY).pending == MEMORY
    assert boot("pi5-8gb", *MEMORY).pending == ()


def test_what_is_taken_away_acts_until_the_next_boot() -> None:
    plan = boot("provisioned", "processor.max_cstate=1")
    assert plan.leaving == ("intel_idle.max_cstate=2",)
    assert boot("provisioned").leaving == IDLE
    assert boot("provisioned", *IDLE).leaving == ()


@pytest.mark.parametrize(
    ("name", "loader"),
    [("n100", "grub"), ("pi5-4gb", "raspberrypi"), ("ryzen-7840hs", "systemd-boot")],
)
def test_recorded_hosts(name: str, loader: str) -> None:
    plan = boot(name, "a=1")
    assert (plan.loader, plan.problems, plan.warnings) == (loader, (), ())
    assert plan.tokens == plan.pending == ("a=1",)
    assert plan.changes


def test_the_table_shows_what_line_becomes_what() -> None:
    rows = _boot(boot("pi5-4gb", *MEMORY))
    assert rows[0] == (
        "boot loader",
        "raspberrypi",
        "the firmware reads /boot/firmware/cmdline.txt",
    )
    change = rows[[row[1] for row in rows].index("/boot/firmware/cmdline.txt") :]
    assert change[0][2].startswith("- console=ttyAMA10")
    assert change[1][2] == f"+ {change[0][2][2:]} cgroup_enable=memory cgroup_memory=1"
