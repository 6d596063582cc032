"""Progress for people: plain lines on stderr, with the seconds that each long part took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Print one line of progress on stderr."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a long part before it starts, and say how long it took when it went well."""
    say(f"{text} …")
    start = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - start:.1f} s")
