"""Retry-After is an estimate that can be trusted: about the time in which the queue is served.

What somebody was told who was refused is compared with when the requests that waited then had
really been served: on a clock of the test's own, and once through the real process.
"""

import asyncio
import heapq
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat

import pytest
from chat_proxy import admission
from chat_proxy.admission import Admission
from chat_proxy.problem import Problem

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event


class Clockwork:
    """An engine whose answers take what `durations` says, on a clock that only it moves."""

    def __init__(self, slots: int, queue: int, durations: Iterator[float]) -> None:
        self.now = 1000.0
        self.admission = Admission(slots, queue)
        self._durations = durations
        self._ends: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    async def request(self) -> None:
        async with self.admission.ticket("client"):
            self._count += 1
            end = asyncio.Event()
            heapq.heappush(self._ends, (self.now + next(self._durations), self._count, end))
            await end.wait()

    async def serve(self, number: int) -> None:
        """Let so many requests come at once, and serve them all."""
        await self.drain([asyncio.ensure_future(self.request()) for _ in range(number)])

    async def drain(self, tasks: "list[asyncio.Future[None]]") -> None:
        await _settled()
        while self._ends:
            self.now, _, end = heapq.heappop(self._ends)
            end.set()
            await _settled()
        assert all(one.done() for one in tasks)


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def mixed(mean_s: float) -> Iterator[float]:
    """Most answers are short, some are long."""
    dice = random.Random(20)
    while True:
        yield dice.expovariate(1 / mean_s)


CASES = {
    "short answers": (2, 20, repeat(0.4)),
    "long answers": (1, 10, repeat(31.0)),
    "many slots": (8, 64, repeat(12.0)),
    "answers of all lengths": (2, 40, mixed(8)),
    "few of all lengths": (4, 16, mixed(8)),
}


@pytest.mark.parametrize("name", CASES)
def test_told_is_about_what_it_takes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    slots, queue, durations = CASES[name]

    async def run() -> list[float]:
        clock = Clockwork(slots, queue, durations)
        monkeypatch.setattr(admission, "time", clock)
        await clock.serve(slots + queue)  # by now it has seen what answers take
        found = []
        for _ in range(30):
            waiting = [asyncio.ensure_future(clock.request()) for _ in range(slots + queue)]
            await _settled()
            begun = clock.now
            with pytest.raises(Problem) as refused:
                clock.admission.ticket("client")
            assert refused.value.retry_after_s is not None
            await clock.drain(waiting)
            found.append(refused.value.retry_after_s / (clock.now - begun))
        return found

    ratios = asyncio.run(run())
    assert 0.75 < statistics.median(ratios) < 1.5
    assert min(ratios) > 0.25
    assert max(ratios) < 4


def test_it_follows_an_engine_that_becomes_slower_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        lengths = iter([*repeat(1.0, 30), *repeat(20.0, 30), *repeat(10_000.0, 30)])
        clock = Clockwork(1, 9, lengths)
        monkeypatch.setattr(admission, "time", clock)
        told = []
        for _ in range(3):
            await clock.serve(10)
            await clock.serve(10)
            await clock.serve(10)
            told.append(clock.admission.retry_after_s())
        assert told == [2, 20, 600]  # rounded up, and ten minutes at most

    asyncio.run(run())


def test_the_real_queue_is_served_in_about_the_time_that_was_told(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """One clock for both: a machine that is slow is slow for what was told, too."""
    slots, waiting = 2, 12
    proxy = start_proxy(slots=slots, queue_limit=waiting, heartbeat_s=0.05)
    go = threading.Event()

    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("begun"))
        assert go.wait(10)
        time.sleep(0.1)
        turn.part(last_events())
        turn.end()

    engine.script = script
    go.set()
    for _ in range(12):
        assert [one.text() for one in [proxy.chat() for _ in range(slots)]] == ["begun"] * slots
    go.clear()
    everybody = [proxy.chat() for _ in range(slots + waiting)]
    engine.turn(12 * slots + slots - 1)
    while True:  # until the last of them has come
        refused = proxy.chat("one too many", stream=False)
        if refused.status == 429:
            break
    told = int(refused.header("retry-after") or "")
    assert refused.json()["error"]["retry_after"] == told
    begun = time.monotonic()
    go.set()
    for one in everybody:
        assert one.text() == "begun"
    took = time.monotonic() - begun
    assert took / 4 <= told <= took * 4 + 1, f"told {told} s, took {took:.1f} s"
