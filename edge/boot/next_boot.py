"""What the next boot of a host will run with, by what its boot loader itself reads. Pure."""

from __future__ import annotations

from edge.boot.cmdline_txt import CMDLINE_TXT
from edge.survey import Survey


def next_cmdline(survey: Survey) -> tuple[str, str]:
    """The file that decides, and the kernel parameters in it; "" where that is not known.

    Not the files that edge-llm writes: a drop-in that update-grub has not read has no effect.
    """
    if survey.boot_loader == "grub":
        return "/boot/grub/grub.cfg", survey.grub_cmdline
    if survey.boot_loader == "raspberrypi":
        return CMDLINE_TXT, survey.cmdline_txt
    return f"what {survey.boot_loader} boots", ""
