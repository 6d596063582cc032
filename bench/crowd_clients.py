"""Clients of a chat, as many as wanted: each asks, honours "come back later", and keeps count."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_SILENCE_S = 60.0  # the proxy sends something every 5 s


@dataclass(frozen=True)
class Target:
    """Where the chat is, and the key to it."""

    url: str
    key: str


@dataclass
class Tally:
    """What came of the requests of a phase; times in seconds."""

    answers: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    """From sending a request to its first text, the queue included."""
    queue_s: list[float] = field(default_factory=list)
    busy: int = 0
    """Told that the queue is full (429, or an error event of the type busy), and came back."""
    late: int = 0
    """Told to come back for another reason (503), and came back."""
    dropped: int = 0
    """Streams that ended, or broke, without their last event."""
    errors: list[str] = field(default_factory=list)
    """Everything else that was no answer."""
    seconds: float = 0

    def figures(self) -> dict[str, Any]:
        """For a table and a JSON file."""
        return {
            "answers": self.answers,
            "errors": len(self.errors),
            "dropped_streams": self.dropped,
            "told_to_come_back_429": self.busy,
            "told_to_come_back_503": self.late,
            "seconds": round(self.seconds, 1),
            "tokens_per_s": round(self.tokens / self.seconds, 1),
            "prompt_tokens_per_answer": round(self.prompt_tokens / max(1, self.answers)),
            "first_token_s": spread(self.first_token_s),
            "queue_s": spread(self.queue_s),
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 95th percentile and largest."""
    if len(values) < 2:
        return {}
    ordered = statistics.quantiles(values, n=100, method="inclusive")
    found = {"avg": statistics.fmean(values), "p50": ordered[49], "p95": ordered[94]}
    return {name: round(value, 4) for name, value in {**found, "max": max(values)}.items()}


class _Later(Exception):  # noqa: N818  (says what happened)
    def __init__(self, error: dict[str, Any]) -> None:
        self.kind = error["type"]
        self.retry_after_s = float(error["retry_after"])


class _Failed(Exception):  # noqa: N818  (says what happened)
    pass


@dataclass(frozen=True)
class Crowd:
    """So many conversations at once, each of so many questions, one after the other."""

    clients: int
    rounds: int
    max_tokens: int
    memory_rounds: int
    """Earlier rounds that go along with a question."""

    @property
    def questions(self) -> int:
        return self.clients * self.rounds


async def ask_all(target: Target, crowd: Crowd, tally: Tally) -> None:
    """Have all conversations; `tally` grows meanwhile."""
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)
    headers = {"Authorization": f"Bearer {target.key}"}
    # A connection of its own for each request: nobody is served because of whom it follows.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        target.url, headers=headers, timeout=timeout, connector=connector
    ) as session:
        talks = [_converse(session, tally, crowd, number) for number in range(crowd.clients)]
        await asyncio.gather(*talks)
    tally.seconds = time.monotonic() - began


_TOPICS = ("Rivers", "Bridges", "Bread", "Stars", "Trains", "Birds", "Clocks", "Gardens")


async def _converse(
    session: aiohttp.ClientSession, tally: Tally, crowd: Crowd, client: int
) -> None:
    """One client's conversation: no question is asked twice, by it or by others."""
    history: list[dict[str, str]] = []
    for number in range(crowd.rounds):
        topic = _TOPICS[(client + number) % len(_TOPICS)]
        history.append({"role": "user", "content": f"{topic}, {client}-{number}?"})
        try:
            text = await _ask(session, tally, history, crowd.max_tokens)
        except _Failed as error:
            tally.errors.append(f"client {client}, question {number}: {error}")
            history.pop()
            continue
        history.append({"role": "assistant", "content": text})
        del history[: len(history) - 2 * crowd.memory_rounds]


async def _ask(
    session: aiohttp.ClientSession, tally: Tally, history: list[dict[str, str]], max_tokens: int
) -> str:
    """Ask until it is answered, as a client that honours Retry-After does."""
    body = json.dumps({"messages": history, "max_tokens": max_tokens}).encode()
    while True:
        try:
            return await _once(session, tally, body)
        except _Later as later:
            if later.kind == "busy":
                tally.busy += 1
            else:
                tally.late += 1
            await asyncio.sleep(later.retry_after_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            tally.dropped += 1
            raise _Failed(f"{type(error).__name__}: {error}") from error


async def _once(session: aiohttp.ClientSession, tally: Tally, body: bytes) -> str:
    sent = time.monotonic()
    first: float | None = None
    texts: list[str] = []
    async with session.post("/chat", data=body) as answer:
        if answer.status != 200:
            raise _problem((await answer.json())["error"])
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise _problem(event["error"])
            if "text" in event:
                first = first or time.monotonic() - sent
                texts.append(event["text"])
            elif event.get("done"):
                tally.answers += 1
                tally.prompt_tokens += event["usage"]["prompt_tokens"]
                tally.tokens += event["usage"]["completion_tokens"]
                tally.queue_s.append(event["timings"]["queue_s"])
                if first is not None:  # a model may have nothing to say
                    tally.first_token_s.append(first)
                return "".join(texts)
    tally.dropped += 1
    raise _Failed("the stream ended without its last event")


def _problem(error: dict[str, Any]) -> Exception:
    if "retry_after" in error:
        return _Later(error)
    return _Failed(f"{error['code']} {error['type']}: {error['message']}")
