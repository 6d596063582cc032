"""The Raspberry Pi's kernel command line as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

CMDLINE_TXT = "/boot/firmware/cmdline.txt"


class CmdlineError(ValueError):
    """The file is not in a state in which it is safe to write it."""


def with_tokens(cmdline: str, tokens: Sequence[str]) -> str:
    """A command line that holds `tokens`: order kept, the missing ones at its end.

    Raises:
        CmdlineError: it is not one line with one root=; writing it could leave a host that does
            not boot.
    """
    lines = cmdline.strip().splitlines()
    words = cmdline.split()
    if len(lines) != 1 or sum(word.startswith("root=") for word in words) != 1:
        raise CmdlineError(f"{CMDLINE_TXT} is not one line with one root=; mend it by hand")
    return " ".join([lines[0].strip(), *(token for token in tokens if token not in words)])
