"""bench/crowd: what counts as an answer, as "come back", as dropped, and what fails the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest
from aiohttp import web

from bench.crowd import troubles
from bench.crowd_clients import Crowd, Tally, Target, ask_all, spread
from bench.crowd_memory import MIB, Service

DONE = {
    "done": True,
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    "timings": {"queue_s": 0.5},
}
LATER = {"code": 429, "type": "busy", "message": "full", "retry_after": 0}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def stream(request: web.Request, *events: object) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for event in events:
        await answer.write(b": queue 1\n\ndata: " + json.dumps(event).encode() + b"\n\n")
    return answer


async def good(request: web.Request) -> web.StreamResponse:
    return await stream(request, {"text": "a"}, {"text": "b"}, DONE)


async def full(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": LATER}, status=429)


async def displaced(request: web.Request) -> web.StreamResponse:
    return await stream(request, {"error": LATER})


async def late(request: web.Request) -> web.StreamResponse:
    error = {"code": 503, "type": "queue_timeout", "message": "late", "retry_after": 0}
    return web.json_response({"error": error}, status=503)


async def cut(request: web.Request) -> web.StreamResponse:
    return await stream(request, {"text": "a"})


async def died(request: web.Request) -> web.StreamResponse:
    error = {"code": 502, "type": "engine_died", "message": "it stopped"}
    return await stream(request, {"text": "a"}, {"error": error})


def crowd(*script: Handler, rounds: int = 1, memory_rounds: int = 1) -> tuple[Tally, list[object]]:
    """One client against a server that answers by the script; what it counts, what it asked."""
    todo: Iterator[Handler] = iter(script)
    asked: list[object] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer k"
        asked.append((await request.json())["messages"])
        return await next(todo)(request)

    async def main() -> Tally:
        app = web.Application()
        app.router.add_post("/chat", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            tally = Tally()
            address = runner.addresses[0]
            target = Target(f"http://127.0.0.1:{address[1]}", "k")
            await ask_all(target, Crowd(1, rounds, 8, memory_rounds), tally)
            return tally
        finally:
            await runner.cleanup()

    return asyncio.run(main()), asked


def seen(**changes: object) -> dict[str, Service]:
    samples = [(float(second), 50 * MIB, 40 * MIB) for second in range(4)]
    service = Service(limit=100 * MIB, pids=["1"], samples=samples)
    for name, value in changes.items():
        setattr(service, name, value)
    return {"chat-proxy": service}


def test_answers_are_counted_and_the_last_round_goes_along() -> None:
    tally, asked = crowd(good, good, good, rounds=3)
    assert (tally.answers, tally.tokens, tally.prompt_tokens) == (3, 6, 15)
    assert len(tally.first_token_s) == 3
    assert tally.queue_s == [0.5] * 3
    roles = [[message["role"] for message in messages] for messages in asked]  # type: ignore[attr-defined]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user"]]
    assert len({json.dumps(messages) for messages in asked}) == 3
    assert troubles(tally, seen(), 3) == []


def test_who_is_told_to_come_back_does() -> None:
    tally, asked = crowd(full, displaced, good)
    assert (tally.busy, tally.answers, len(asked)) == (2, 1, 3)
    assert troubles(tally, seen(), 1) == []
    tally, _ = crowd(late, good)
    assert (tally.late, tally.answers) == (1, 1)
    assert "1 times a 503" in troubles(tally, seen(), 1)[0]


@pytest.mark.parametrize(("handler", "dropped"), [(cut, 1), (died, 0)])
def test_what_is_no_answer_fails_the_run(handler: Handler, dropped: int) -> None:
    tally, _ = crowd(handler, good, rounds=2)
    assert (tally.answers, tally.dropped, len(tally.errors)) == (1, dropped, 1)
    assert "client 0, question 0" in troubles(tally, seen(), 2)[0]


def test_restarts_and_full_memory_fail_the_run() -> None:
    tally, _ = crowd(good)
    for changes, words in (
        ({"pids": ["1", "2"]}, "restarted 1 times"),
        ({"samples": []}, "not seen running"),
        ({"limit": 40 * MIB}, "came to its limit"),
    ):
        (trouble,) = troubles(tally, seen(**changes), 1)
        assert words in trouble


def test_figures() -> None:
    grows = [(float(60 * n), 9 * MIB, (10 + 2 * n) * MIB) for n in range(10)]
    figures = seen(samples=grows)["chat-proxy"].figures()
    assert (figures["first_mib"], figures["peak_mib"], figures["last_mib"]) == (10, 28, 28)
    assert figures["slope_mib_per_minute"] == 2
    assert spread([1, 2, 3, 4, 5]) == {"avg": 3, "p50": 3, "p95": 4.8, "max": 5}
