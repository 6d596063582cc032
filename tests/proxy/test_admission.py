"""Places are handed on in order and never lost, whoever leaves and when."""

import asyncio
import random
import time

import pytest
from chat_proxy.admission import Admission
from chat_proxy.problem import Problem


def test_a_waiter_that_leaves_in_the_moment_of_its_turn_passes_the_place_on() -> None:
    async def run() -> None:
        admission = Admission(1, 2)
        got: list[str] = []

        async def hold(name: str) -> None:
            async with admission.ticket("one"):
                got.append(name)

        first = admission.ticket("one")
        async with first:
            leaving = asyncio.ensure_future(hold("leaving"))
            staying = asyncio.ensure_future(hold("staying"))
            await asyncio.sleep(0)
            assert admission.waiting == 2
        leaving.cancel()  # it has the place by now, but has not run since
        await asyncio.gather(leaving, staying, return_exceptions=True)
        assert got == ["staying"]
        assert (admission.active, admission.waiting) == (0, 0)

    asyncio.run(run())


def test_no_place_is_lost_or_given_twice() -> None:
    async def run(seed: int) -> None:
        chance = random.Random(seed)
        admission = Admission(3, 1000)
        most = 0

        async def visit() -> None:
            nonlocal most
            async with admission.ticket("one"):
                most = max(most, admission.active)
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)

        tasks = []
        for _ in range(200):
            tasks.append(asyncio.ensure_future(visit()))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.active, admission.waiting, most) == (0, 0, 3)

    for seed in range(30):
        asyncio.run(run(seed))


def test_a_full_queue_is_refused_with_an_estimate() -> None:
    async def run() -> None:
        admission = Admission(1, 0)
        async with admission.ticket("one"):
            with pytest.raises(Problem) as caught:
                admission.ticket("one")
            assert caught.value.status == 429
            before = caught.value.retry_after_s
        for _ in range(30):  # short answers, as measured, shorten the estimate
            async with admission.ticket("one"):
                await asyncio.sleep(0)
        assert before == 10
        assert admission.retry_after_s() == 1

    asyncio.run(run())


def test_who_would_wait_in_vain_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def run() -> None:
        nonlocal now
        admission = Admission(2, 32, patience_s=40.0)
        joined: list[asyncio.Future[None]] = []

        async def visit() -> None:
            async with admission.ticket("one"):
                pass

        async def queue(number: int) -> int:
            """How many of `number` more requests may wait."""
            fresh = [asyncio.ensure_future(visit()) for _ in range(number)]
            joined.extend(fresh)
            await asyncio.sleep(0)
            refused = [one.exception() for one in fresh if one.done()]
            for problem in refused:
                assert isinstance(problem, Problem)
                assert problem.status == 429
            return number - len(refused)

        first, second = admission.ticket("one"), admission.ticket("one")
        async with first, second:
            assert await queue(20) == 20  # nothing is known of answers yet
        await asyncio.gather(*joined)
        for _ in range(60):  # now an answer takes 20 s: in 40 s there are four
            async with admission.ticket("one"):
                now += 20
        async with first, second:
            assert await queue(20) == 4
            assert admission.waiting == 4
        for _ in range(200):
            async with admission.ticket("one"):
                now += 500
        async with first, second:
            assert await queue(20) == 2  # the next two may hope that what runs is nearly done
        await asyncio.gather(*joined, return_exceptions=True)
        assert (admission.active, admission.waiting) == (0, 0)

    asyncio.run(run())
