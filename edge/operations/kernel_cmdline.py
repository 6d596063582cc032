"""Operation: write the Raspberry Pi's kernel command line."""

from __future__ import annotations

import shlex
from collections.abc import Generator

from pyinfra.api import StringCommand, operation

from edge.cmdline import CMDLINE_TXT


@operation()
def raspberry_pi(found: str, wanted: str) -> Generator[StringCommand, None, None]:
    """Write cmdline.txt, if it is not as wanted.

    A copy of its first state is kept beside it; the new one is written beside it, flushed and
    renamed, so that a power cut leaves a host that boots.

    Args:
        found: the file as the survey read it.
        wanted: the one line that it is to hold.
    """
    if found.strip() == wanted:
        return
    path = shlex.quote(CMDLINE_TXT)
    yield StringCommand(
        "\n".join(
            [
                "set -eu",
                f"[ -e {path}.edge-llm.bak ] || cp -p {path} {path}.edge-llm.bak",
                f"printf '%s\\n' {shlex.quote(wanted)} > {path}.edge-new",
                f"sync {path}.edge-new; mv -f {path}.edge-new {path}; sync {path}",
            ]
        )
    )
