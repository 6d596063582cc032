"""What a check says: what was expected and found, where, and what to do about it."""

from __future__ import annotations

import re
from typing import Any

_FOR_ROOT = re.compile(r"\b(?:journalctl|systemctl|rm) ")


class Wrong(AssertionError):  # noqa: N818  (says what happened)
    """A check that does not hold. `remedy` is what to do; None: the next rollout heals it."""

    def __init__(self, expected: Any, found: Any, where: str, remedy: str | None = None) -> None:
        super().__init__(f"expected {expected}, found {found} ({where})")
        self.expected, self.found, self.where, self.remedy = expected, found, where, remedy

    def text(self, heal: str, *, sudo: bool = False) -> str:
        """All of it in four lines; `heal` says how to run the rollout, `sudo` whether what is to be
        typed on the host needs it there."""
        lines = {
            "expected": self.expected,
            "found": self.found,
            "where": self.where,
            "to do": heal if self.remedy is None else as_typed(self.remedy, sudo=sudo),
        }
        return "\n".join(f"{name:<8}  {value}" for name, value in lines.items())


def as_typed(text: str, *, sudo: bool) -> str:
    """Words for a person with the commands in them as they are typed at the host's login."""
    return _FOR_ROOT.sub(lambda found: f"sudo {found[0]}", text) if sudo else text


def expect(expected: Any, found: Any, where: str, remedy: str | None = None) -> None:
    """Raises Wrong where the two differ."""
    if expected != found:
        raise Wrong(expected, found if found not in ("", None) else "nothing", where, remedy)


class Say:
    """What a check that holds has to tell."""

    def __init__(self, properties: list[tuple[str, object]], *, sudo: bool = False) -> None:
        self._properties, self._sudo = properties, sudo

    def found(self, text: object) -> None:
        """What was found; shown by `-v`."""
        self._properties.append(("found", str(text)))

    def note(self, text: str) -> None:
        """What a person should know although the check holds; always shown."""
        self._properties.append(("note", as_typed(text, sudo=self._sudo)))
