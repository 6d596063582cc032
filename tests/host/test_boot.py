"""Kernel parameters: what the kernel runs with, and what the next boot will have."""

from __future__ import annotations

from checks import Say, Wrong
from machine import Machine

from edge.boot.cmdline_txt import CMDLINE_TXT
from edge.plan import HostPlan
from edge.reboot import IF_NEEDED, still_missing


def _why_none(plan: HostPlan) -> str:
    if plan.tuning.kernel_parameters:
        return f"boot loader {plan.boot.loader}: {plan.boot.reasons['loader']}"
    return plan.tuning.reasons["kernel_parameters"]


def test_kernel_parameters_in_effect(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = plan.boot.tokens
    if not wanted:
        say.note(_why_none(plan))
        return
    here = machine.read(f"{machine.root}/proc/cmdline")
    waiting = " ".join(still_missing(wanted, here))
    if not waiting:
        say.found(" ".join(wanted))
    elif plan.reboot.when == IF_NEEDED:
        raise Wrong(waiting, here.strip(), "/proc/cmdline",
                    "the next rollout reboots it (reboot = if_needed)")  # fmt: skip
    else:
        say.note(f"takes effect at the next boot: {waiting}")


def test_kernel_parameters_in_boot_files(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = plan.boot.tokens
    if not wanted:
        say.note(_why_none(plan))
        return
    if plan.boot.loader == "raspberrypi":
        where, line = CMDLINE_TXT, machine.read(CMDLINE_TXT)
        roots = [word for word in line.split() if word.startswith("root=")]
        if len(line.strip().splitlines()) != 1 or len(roots) != 1:
            raise Wrong("one line with one root=", line, where, "mend it before the next boot")
    else:
        where = "/boot/grub/grub.cfg"
        line = machine.run("awk '$1 == \"linux\" { print; exit }' %s", where)
    for word in wanted:
        if word not in line.split():
            raise Wrong(word, line, where)
    say.found(f"{where}: {' '.join(wanted)}")
