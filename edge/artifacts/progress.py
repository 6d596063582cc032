"""Progress of long work (downloads, hashing, builds) as plain lines.

Plain lines and no redrawn bar: they read the same in a terminal, in a CI log and through SSH.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

#: Seconds between two lines of one piece of work.
INTERVAL_S = 2.0


class Progress(Protocol):
    """Told about one piece of work at a time: start, any number of advances, done."""

    def start(self, label: str, total: int | None, *, unit: str = "B") -> None:
        """Begin `label`; `total` is its size in `unit` ("B" for bytes, else a noun) or None."""

    def advance(self, amount: int) -> None:
        """`amount` more units are done (negative: work that has to be done again)."""

    def done(self) -> None:
        """The piece of work has ended well."""


class SilentProgress:
    """Says nothing."""

    def start(self, label: str, total: int | None, *, unit: str = "B") -> None:
        """See Progress."""

    def advance(self, amount: int) -> None:
        """See Progress."""

    def done(self) -> None:
        """See Progress."""


class LineProgress:
    """Writes a line at most every two seconds: how much, how fast, how long still."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._label = ""
        self._total: int | None = None
        self._unit = "B"
        self._amount = 0
        self._began = self._last = 0.0

    def start(self, label: str, total: int | None, *, unit: str = "B") -> None:
        """See Progress."""
        self._label, self._total, self._unit, self._amount = label, total, unit, 0
        self._began = self._last = time.monotonic()
        self._write(f"{label}: {self._quantity(total)}" if total else label)

    def advance(self, amount: int) -> None:
        """See Progress."""
        self._amount += amount
        now = time.monotonic()
        if now - self._last < INTERVAL_S:
            return
        self._last = now
        speed = self._amount / max(now - self._began, 0.001)
        parts = [self._quantity(self._amount), f"{self._quantity(speed)}/s"]
        if self._total:
            parts.insert(0, f"{100 * self._amount / self._total:.0f}%")
            if speed > 0:
                parts.append(f"{_clock((self._total - self._amount) / speed)} left")
        self._write(f"{self._label}: " + ", ".join(parts))

    def done(self) -> None:
        """See Progress."""
        took = time.monotonic() - self._began
        amount = f"{self._quantity(self._amount)} in " if self._amount else ""
        self._write(f"{self._label}: done, {amount}{_clock(took)}")

    def _quantity(self, amount: float | None) -> str:
        if amount is None:
            return "?"
        if self._unit != "B":
            return f"{amount:.3g} {self._unit}" if amount < 100 else f"{amount:.0f} {self._unit}"
        return f"{amount / 1e6:.1f} MB"

    def _write(self, line: str) -> None:
        print(line, file=self._stream or sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
