"""The kernel command line: which host's is written, and what waits for the next boot."""

from __future__ import annotations

from edge.boot import BootPlan, plan_boot
from tests.unit.recorded import survey_of

MEMORY = ("cgroup_enable=memory", "cgroup_memory=1")
IDLE = ("intel_idle.max_cstate=1", "processor.max_cstate=1")


def boot(name: str, *asked: str) -> BootPlan:
    return plan_boot(asked, survey_of(name))


def test_what_the_kernel_has_does_not_wait_for_a_boot() -> None:
    assert boot("n100", *IDLE).pending == IDLE
    assert boot("provisioned", *IDLE).pending == ()
    assert boot("pi5-4gb", *MEMORY).pending == MEMORY
    assert boot("pi5-8gb", *MEMORY).pending == ()


def test_a_boot_loader_that_is_not_written_is_said() -> None:
    plan = boot("ryzen-7840hs", "processor.max_cstate=1")
    (warning,) = plan.warnings
    assert "boot loader systemd-boot" in warning
    assert "add processor.max_cstate=1 to the kernel" in warning
    assert plan.tokens == plan.pending == ()
    assert "not written" in plan.reasons["loader"]
