"""What a check says: what was expected and found, where, and what to do about it."""

from __future__ import annotations

from typing import Any


class Wrong(AssertionError):  # noqa: N818
    """A check that does not hold. `remedy` is what to do; None: the next rollout heals it."""

    def __init__(self, expected: Any, found: Any, where: str, remedy: str | None = None) -> None:
        super().__init__(f"expected {expected}, found {found} ({where})")
        self.expected, self.found, self.where, self.remedy = expected, found, where, remedy

    def text(self, heal: str) -> str:
        """All of it in four lines; `heal` says how to run the rollout."""
        lines = {
            "expected": self.expected,
            "found": self.found,
            "where": self.where,
            "to do": heal if self.remedy is None else self.remedy,
        }
        return "\n".join(f"{name:<8}  {value}" for name, value in lines.items())


def expect(expected: Any, found: Any, where: str, remedy: str | None = None) -> None:
    """Raises Wrong where the two differ."""
    if expected != found:
        raise Wrong(expected, found if found not in ("", None) else "nothing", where, remedy)


class Say:
    """What a check that holds has to tell."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def found(self, text: object) -> None:
        """What was found; shown by `-v`."""
        self._properties.append(("found", str(text)))

    def note(self, text: str) -> None:
        """What a person should know although the check holds; always shown."""
        self._properties.append(("note", text))
