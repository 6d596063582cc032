"""Operation: write the Raspberry Pi's kernel command line."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra.api import StringCommand, operation

from edge.boot.cmdline_txt import CMDLINE_TXT, CmdlineError, with_tokens


@operation()
def raspberry_pi(found: str, tokens: Sequence[str]) -> Generator[StringCommand, None, None]:
    """Add to cmdline.txt the tokens that it lacks.

    A copy of its first state is kept beside it; the new one is written beside it, flushed and
    renamed, so that a power cut leaves a host that boots.

    Args:
        found: the file as the survey read it.
        tokens: what it must hold.
    """
    if not tokens:
        return
    try:
        wanted = with_tokens(found, tokens)
    except CmdlineError:
        return  # preflight fails this host for it; raised here, it would end the run for all hosts
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
