"""Where a script's own output begins: login shells print texts of their own before it.

bash reads .bashrc for what sshd starts, too, and many a .bashrc greets.
"""

from __future__ import annotations

MARK = "@@@edge-llm"
SAY = f"printf '\\n{MARK}\\n'; "
"""Shell that a script begins with. On a line of its own, wherever the greeting has ended."""


def after(text: str) -> str:
    """What follows the mark; all of the text where there is none."""
    # The first one: what comes after it is the script's, whatever is in the files that it shows.
    lines = text.split("\n")
    return "\n".join(lines[lines.index(MARK) + 1 :]) if MARK in lines else text
