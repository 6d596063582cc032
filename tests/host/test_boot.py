"""Kernel parameters: what the kernel runs with, and what the next boot will have."""

from __future__ import annotations

import re

from checks import Say, Wrong
from machine import Machine

from edge.boot.line import words
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
    """Read as the boot loader does, from the file that it reads."""
    wanted = plan.boot.tokens
    if not wanted:
        say.note(_why_none(plan))
        return
    lines = _lines(machine, plan)
    if plan.boot.loader == "raspberrypi":
        ((where, line),) = lines
        roots = [word for word in line.split() if word.startswith("root=")]
        if len(line.strip().splitlines()) != 1 or len(roots) != 1:
            raise Wrong("one line with one root=", line, where, "mend it before the next boot")
    usual = [(where, line) for where, line in lines if not RESCUE & set(words(line))]
    lacking = [each for each in usual if not set(wanted) <= set(words(each[1]))]
    # GRUB and extlinux may have entries of the operator's own beside the tool's.
    if not usual or len(lacking) == len(usual) or (lacking and plan.boot.loader == "systemd-boot"):
        where, line = lacking[0] if lacking else (plan.boot.path or "its entries", "none")
        raise Wrong(" ".join(wanted), line, where, "the next rollout sets it")
    say.found(f"{usual[0][0]}: {' '.join(wanted)}")


RESCUE = {"single", "recovery"}
ENTRIES = "boot/loader/entries/*.conf efi/loader/entries/*.conf boot/efi/loader/entries/*.conf"
# What the line of a kernel begins with, by loader.
KEYS = {
    "grub": r"linux(?:efi|16)?[ \t]+\S+",
    "extlinux": "append",
    "u-boot-menu": "append",
    "armbian": "extraargs=",
}


def _lines(machine: Machine, plan: HostPlan) -> list[tuple[str, str]]:
    """Each kernel's command line for the next boot, and the file that holds it."""
    path = plan.boot.path
    if plan.boot.loader == "raspberrypi":
        return [(path, machine.read(machine.root + path))]
    if key := KEYS.get(plan.boot.loader):
        found = re.findall(rf"(?mi)^[ \t]*{key}(.*)$", machine.read(machine.root + path))
        return [(path, line) for line in found]
    out = machine.run(
        f'cd %s/ && for f in {ENTRIES}; do [ ! -f $f ] || {{ echo "@@/$f"; cat $f; echo; }}; done',
        machine.root,
    )
    lines = []
    for entry in out.split("@@")[1:]:
        name, _, text = entry.partition("\n")
        if re.search(r"(?m)^\s*linux\s", text):
            options = re.findall(r"(?m)^\s*options\s+(.*?)\s*$", text)
            lines.append((name, " ".join(options)))
    return lines
