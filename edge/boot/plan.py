"""What is asked of the kernel command line, and what the boot files hold -> what is written where.

Pure: `edge.steps.boot` carries it out, the verification asserts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.boot.cmdline_txt import CmdlineError, with_tokens
from edge.survey import Survey

WRITABLE_LOADERS = ("grub", "raspberrypi")


@dataclass(frozen=True)
class BootPlan:
    """The kernel command line of one host."""

    loader: str
    """What boots the host: grub, raspberrypi, or what edge-llm does not write."""
    tokens: tuple[str, ...]
    """What the boot files hold at the end of a rollout, of what is asked for."""
    pending: tuple[str, ...]
    """Those of `tokens` that act only from the next boot: /proc/cmdline has them not."""
    problems: tuple[str, ...]
    """Why the boot files cannot be written; nothing of the host is touched then."""
    reasons: dict[str, str]
    warnings: tuple[str, ...]


def plan_boot(asked: Sequence[str], survey: Survey) -> BootPlan:
    """Decide how the kernel parameters `asked` get onto the command line of the next boot."""
    loader = survey.boot_loader
    tokens = tuple(asked)
    problems: list[str] = []
    warnings: list[str] = []
    reasons = {"loader": "by its files"}
    if tokens and loader not in WRITABLE_LOADERS:
        warnings.append(
            f"boot loader {loader}: edge-llm does not write it yet; add {' '.join(tokens)} to the "
            "kernel command line by hand"
        )
        reasons["loader"] += "; not written"
        tokens = ()
    if tokens and loader == "raspberrypi":
        try:
            with_tokens(survey.cmdline_txt, tokens)
        except CmdlineError as error:
            problems.append(str(error))
    return BootPlan(
        loader=loader,
        tokens=tokens,
        pending=tuple(token for token in tokens if token not in survey.cmdline.split()),
        problems=tuple(problems),
        reasons=reasons,
        warnings=tuple(warnings),
    )
