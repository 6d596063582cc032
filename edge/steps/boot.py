"""Boot: our tokens on the kernel command line, and nothing else of it.

Changes: a drop-in for GRUB and grub.cfg, or tokens in the Raspberry Pi's cmdline.txt. They act from
the next boot.
Undo: remove the drop-in, `update-grub`, reboot; cmdline.txt.edge-llm.bak is the former cmdline.txt.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import kernel_cmdline, managed
from edge.ready import Ready
from edge.render import GRUB_DROP_IN, differing

UPDATE_GRUB = (
    "if command -v update-grub >/dev/null; then update-grub; "
    "else grub-mkconfig -o /boot/grub/grub.cfg; fi >/dev/null 2>&1"
)


@deploy("Boot")
def boot(ready: Ready) -> None:
    """Write what the plan asks for where the host's boot loader reads it."""
    plan, survey = ready.plan.boot, ready.survey
    if plan.loader == "raspberrypi":
        kernel_cmdline.raspberry_pi(
            name="Kernel command line", found=survey.cmdline_txt, tokens=plan.tokens
        )
        return
    wanted = ready.rendered.boot
    write = differing(wanted, survey.installed.files)
    stale = [GRUB_DROP_IN] if GRUB_DROP_IN in survey.installed.files and not wanted else []
    # What grub.cfg holds decides, not whether this run wrote the drop-in.
    lacking = set(plan.tokens) - set(survey.grub_cmdline.split())
    then = [UPDATE_GRUB] if write or stale or (wanted and lacking) else []
    managed.files(name="Kernel command line", write=write, remove=stale, then=then)
