"""The parts that a plan for the boot files is made of, and what is decided of each token."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edge.boot.files import to_bytes
from edge.boot.line import edited, rivals, split
from edge.boot.record import Ours


@dataclass(frozen=True)
class Edit:
    """One file that is written, and what it held. Text as in `BootFile`; None: it is not there."""

    path: str
    before: str | None
    after: str | None
    folder: str = ""
    """The topmost folder that is ours: made for the file, or removed after it."""

    @property
    def expected(self) -> str:
        """sha256 of what the host must still have there; "absent"."""
        return "absent" if self.before is None else digest(self.before)

    @property
    def lines(self) -> list[str]:
        """What line becomes what, as a person reads it."""
        old = [] if self.before is None else self.before.splitlines()
        new = [] if self.after is None else self.after.splitlines()
        return [
            *(f"- {_shown(line)}" for line in old if line not in new),
            *(f"+ {_shown(line)}" for line in new if line not in old),
        ]


@dataclass(frozen=True)
class Generate:
    """A tool that makes the loader's own file from files of ours."""

    kind: str
    """grub, u-boot-menu or kernelstub."""
    tool: str
    path: str
    """What it makes."""
    holds: tuple[str, ...]
    """Tokens that must be in what it has made; otherwise the host fails."""
    drops: tuple[str, ...] = ()
    """Tokens that kernelstub is told to take out."""
    expected: str = ""
    """sha256 that `path` must still have, where the tool changes it rather than making it."""


@dataclass(frozen=True)
class Written:
    """What a kind of loader comes to."""

    edits: tuple[Edit, ...] = ()
    places: Mapping[str, Ours] = field(default_factory=dict)
    """What is ours at the end, by place."""
    tokens: tuple[str, ...] = ()
    """Those of what is asked for that the next boot has."""
    generate: Generate | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What becomes of each token that is asked for, in one place."""

    ours: tuple[str, ...]
    respected: tuple[str, ...]
    """The operator has it there already."""
    conflicts: tuple[tuple[str, str], ...]
    """The operator has another value there, which stays: (asked for, theirs)."""

    @property
    def held(self) -> tuple[str, ...]:
        """What the place holds at the end."""
        return (*self.ours, *self.respected)


def decide(asked: Sequence[str], theirs: Sequence[str]) -> Decision:
    """Whose each token is. `theirs`: the operator's words, in the order in which they count."""
    ours, respected, conflicts = [], [], []
    for token in asked:
        same = rivals(token, theirs)
        if not same:
            ours.append(token)
        elif same[-1] == token:  # the kernel takes the last one
            respected.append(token)
        else:
            conflicts.append((token, same[-1]))
    return Decision(tuple(ours), tuple(respected), tuple(conflicts))


def conflict(path: str, asked: str, theirs: str) -> str:
    """The warning for a token that is the operator's."""
    return f"{path} sets {theirs}: it is left so; take it out there to have {asked}"


def rewritten(
    parts: Sequence[str], ours: Sequence[str], asked: Sequence[str]
) -> tuple[list[str], Decision]:
    """A command line that stands in several parts (one at least), with our words as they should be.

    Raises:
        LineError: a quote is not closed.
    """
    left = list(ours)
    own: list[list[str]] = []
    theirs: list[str] = []
    for part in reversed(parts):
        mine: list[str] = []
        for word in reversed(split(part)):
            if word.text in left:
                left.remove(word.text)
                mine.append(word.text)
            else:
                theirs.insert(0, word.text)
        own.insert(0, mine)
    decision = decide(asked, theirs)
    wanted = list(decision.ours)
    new = []
    for part, mine in zip(parts[:-1], own[:-1], strict=True):
        stays = [token for token in wanted if token in mine]
        new.append(edited(part, mine, stays))
        wanted = [token for token in wanted if token not in stays]
    new.append(edited(parts[-1], own[-1], wanted))
    return new, decision


def digest(text: str) -> str:
    """sha256 of a file's text, in hexadecimal."""
    return hashlib.sha256(to_bytes(text)).hexdigest()


def _shown(line: str) -> str:
    """A line for people: bytes that are no text are escaped."""
    return to_bytes(line).decode("utf-8", "backslashreplace").rstrip()
