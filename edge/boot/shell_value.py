"""What a shell variable holds after several files were sourced, without running any of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge.boot.files import BootFile
from edge.boot.line import words


@dataclass(frozen=True)
class Sourced:
    """A variable's words with the file that each comes from, and who set it anew last."""

    words: tuple[tuple[str, str], ...]
    reset_by: str
    """The last file that set it without extending what it held; empty where none did."""


def sourced(files: Sequence[BootFile], name: str) -> Sourced:
    """`name` after these files, in this order. What only a shell could know stays as it is written.

    Assignments inside of an `if` count, too.
    """
    held: list[tuple[str, str]] = []
    reset_by = ""
    itself = re.compile(rf"\$\{{{name}(?![A-Za-z0-9_])[^}}]*\}}|\${name}(?![A-Za-z0-9_])")
    assignment = re.compile(rf"(?m)^[ \t]*(?:export[ \t]+)?{name}=")
    for file in files:
        for found in assignment.finditer(file.text):
            value = _value(file.text, found.end())
            if not itself.search(value):
                held, reset_by = [], file.path
            held += [(word, file.path) for word in words(itself.sub(" ", value))]
    return Sourced(tuple(held), reset_by)


def _value(text: str, at: int) -> str:
    """The word of shell that begins at `at`, without its quotes; expansions stay as they are."""
    value, quote = "", ""
    while at < len(text):
        character = text[at]
        at += 1
        if quote == "'" and character != "'":
            value += character
        elif character == "\\" and at < len(text):
            # In double quotes only some lose their backslash; a line's end goes with it.
            following = text[at]
            at += 1
            if following == "\n":
                continue
            value += following if not quote or following in '"\\$`' else character + following
        elif character in "\"'" and quote in ("", character):
            quote = "" if quote else character
        elif not quote and character in " \t\r\n;&|#":
            break
        else:
            value += character
    return value
