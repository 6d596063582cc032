"""Who needs a reboot, and why: decided once, from what was asked and what the kernel runs with."""

from __future__ import annotations

from dataclasses import replace

from edge.plan_text import rows
from edge.reboot import in_vain, refusal, still_missing
from edge.settings import check_host
from tests.unit.recorded import planned, survey_of

IDLE = ("intel_idle.max_cstate=2", "processor.max_cstate=1")
OWN = "3f1c9f0e-0000-4000-8000-000000000001"


def row(*asked: str, **settings: str) -> tuple[str, str]:
    """What `edge plan` shows."""
    table = {label: (value, why) for label, value, why in rows(planned(*asked, **settings))}
    return table["from the next boot"]


def test_never_only_says_what_is_waiting() -> None:
    plan = planned("n100", "n100").reboot
    assert (plan.when, plan.due, plan.waiting) == ("never", False, IDLE)
    assert plan.says == f"takes effect at the next boot: {' '.join(IDLE)}"
    assert row("n100", "n100") == (" ".join(IDLE), "when it is rebooted (reboot = never)")


def test_if_needed_is_due_only_where_something_waits() -> None:
    assert planned("n100", "n100", reboot="if_needed").reboot.due
    why = "the next rollout reboots it (reboot = if_needed)"
    assert row("n100", "n100", reboot="if_needed") == (" ".join(IDLE), why)
    booted = planned("provisioned", "n100", reboot="if_needed").reboot
    assert (booted.due, booted.says) == (False, "")
    assert row("provisioned", "n100", reboot="if_needed") == ("-", "")
    assert not planned("n100", "n100", reboot="if_needed", max_cstate="keep").reboot.due


def test_what_a_pi_lacks_until_then_is_said_with_it() -> None:
    plan = planned("pi5-4gb", "pi5").reboot
    assert plan.says == (
        "takes effect at the next boot: cgroup_enable=memory cgroup_memory=1 "
        "(memory limits are not enforced until then)"
    )
    assert plan.warnings == ()
    # No boot brings what nobody asks the kernel for.
    without = replace(survey_of("n100"), cgroup_controllers=frozenset({"cpu"}))
    other = planned(without, "n100").reboot
    assert other.until == ""
    (warning,) = other.warnings
    assert warning in planned(without, "n100").warnings


def test_a_reboot_is_in_vain_where_the_boot_loader_does_not_read_it() -> None:
    fresh, provisioned = survey_of("n100"), survey_of("provisioned")
    assert in_vain(IDLE, provisioned) == ""
    assert in_vain(IDLE, fresh) == f"/boot/grub/grub.cfg does not hold {' '.join(IDLE)}"
    config = replace(provisioned.boot.grub[0], entries=(f"root=UUID=1 quiet {IDLE[0]}",))
    half = replace(provisioned, boot=replace(provisioned.boot, grub=(config,)))
    half = replace(half, cmdline="BOOT_IMAGE=/vmlinuz root=UUID=1")
    assert in_vain(IDLE, half) == f"/boot/grub/grub.cfg does not hold {IDLE[1]}"
    pi = survey_of("pi5-4gb")
    tokens = ("cgroup_enable=memory",)
    assert in_vain(tokens, pi) == "/boot/firmware/cmdline.txt does not hold cgroup_enable=memory"
    assert in_vain(tokens, survey_of("pi5-8gb")) == ""
    unknown = replace(provisioned, cmdline="root=/dev/vda")
    assert "what boots it, which is not known (GRUB is installed" in in_vain(IDLE, unknown)


def test_part_of_a_word_is_not_the_word() -> None:
    assert still_missing(("a.b=1",), "root=1 a.b=10 xa.b=1") == ("a.b=1",)
    assert still_missing(("a.b=1",), "root=1 a.b=1\n") == ()


def test_the_controllers_own_kernel_is_left_alone() -> None:
    assert "reboot that one yourself" in refusal(OWN, OWN, local=False)
    assert "reboot that one yourself" in refusal(OWN, "", local=True)
    assert refusal(OWN, "", local=False) == refusal(OWN, OWN[::-1], local=False) == ""


def test_true_is_told_what_to_write() -> None:
    _, (problem,) = check_host("box", {"reboot": True})
    assert str(problem) == 'box: reboot = True: allowed: "never", "if_needed"'
