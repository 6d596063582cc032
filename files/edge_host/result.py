"""What a call has to say: its result, why it failed, and what it does meanwhile."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any


class Failed(Exception):  # noqa: N818  (says what happened)
    """The wanted state cannot be reached: why, and the units whose journal says more."""

    def __init__(self, reason: str, *units: str) -> None:
        super().__init__(reason)
        self.units = units


@dataclass
class Result:
    """What is printed. `gate` has the figures of what serves now."""

    verb: str
    plan_digest: str = ""
    time: str = ""
    ok: bool = False
    restarted: list[str] = field(default_factory=list)
    rolled_back: bool = False
    serving: bool = False
    reason: str = ""
    journal: list[str] = field(default_factory=list)
    gate: dict[str, Any] = field(default_factory=dict)


def say(text: str) -> None:
    """One line on stderr; whoever listened may be gone."""
    with contextlib.suppress(OSError):
        os.write(2, f"edge-host: {text}\n".encode(errors="replace"))


def now() -> str:
    """The time, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
