"""A streamed answer: its events, its figures, and the words of one that went wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .result import Failed
from .units import ENGINE, PROXY


def sse_events(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(name, data) of each event of an event stream, as it comes; comments are dropped."""
    kind, data = "", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "", []
        elif key == "event":
            kind = value
        elif key == "data":
            data.append(value)


def read_answer(lines: Iterable[bytes], start: float) -> dict[str, Any]:
    """Read /chat's stream to its last event; `start` by time.monotonic(). Raises Failed."""
    times: list[float] = []
    for kind, data in sse_events(lines):
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise Failed("the answer holds an event that is no JSON object", ENGINE, PROXY)
        if kind == "error":
            raise Failed(f"the answer ended with an error: {error_text(event)}", ENGINE, PROXY)
        if event.get("done"):
            if not times:
                raise Failed("the answer was empty", ENGINE, PROXY)
            total = time.monotonic() - start
            usage = event.get("usage")
            counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
            tokens = counted if isinstance(counted, int) else len(times)
            spent = times[-1] - times[0]
            return {
                "first_token_ms": round((times[0] - start) * 1000, 1),
                "total_ms": round(total * 1000, 1),
                "tokens": tokens,
                "tokens_per_s": round((tokens - 1) / spent, 1) if spent and tokens > 1 else None,
            }
        if isinstance(event.get("text"), str) and event["text"].strip():
            times.append(time.monotonic())
    raise Failed("the answer broke off before its end", ENGINE, PROXY)


def error_text(event: Any) -> str:
    """A proxy's or engine's words for what went wrong, in one line."""
    inner = event.get("error", event) if isinstance(event, dict) else event
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(text).split())[:200]
