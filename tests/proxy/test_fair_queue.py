"""Clients take turns in the queue, and none can fill it for the others."""

import asyncio
from collections.abc import Callable

import pytest
from chat_proxy.admission import Admission, Ticket
from chat_proxy.problem import Problem

from tests.proxy.key_file import KeyFile, bearer
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine
from tests.proxy.test_crowd import Gate, hold_slot


class Crowd:
    """Requests that wait for the one place, and in which order they got it."""

    def __init__(self, queue_limit: int = 100) -> None:
        self.admission = Admission(1, queue_limit)
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Future[None]] = {}

    async def join(self, *names: str) -> None:
        """One request each; a name's first letter is its client."""
        for name in names:
            ticket = self.admission.ticket(name[0])
            self.tasks[name] = asyncio.ensure_future(self._visit(name, ticket))
            await asyncio.sleep(0)

    async def _visit(self, name: str, ticket: Ticket) -> None:
        async with ticket:
            self.served.append(name)

    async def settle(self) -> list[object]:
        return await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def test_each_client_is_served_once_before_any_twice() -> None:
    async def run() -> None:
        crowd = Crowd()
        async with crowd.admission.ticket("z"):
            await crowd.join("a1", "a2", "a3", "a4", "b1", "c1", "c2", "b2")
        await crowd.settle()
        assert crowd.served == ["a1", "b1", "c1", "a2", "c2", "b2", "a3", "a4"]

    asyncio.run(run())


def test_a_late_comer_is_served_in_the_running_round() -> None:
    async def run() -> None:
        crowd = Crowd()
        admission = crowd.admission
        await crowd.join("a0")
        async with admission.ticket("z"):
            await crowd.join(*(f"a{n}" for n in range(1, 9)))
            position = admission.ticket("b")
            waiting = asyncio.ensure_future(position.__aenter__())
            await asyncio.sleep(0)
            assert position.position == 2  # behind a1 only
        await waiting
        await position.__aexit__(None, None, None)
        await crowd.settle()
        assert crowd.served == [f"a{n}" for n in range(9)]

    asyncio.run(run())


def test_requests_that_leave_cost_their_client_no_turn() -> None:
    async def run() -> None:
        crowd = Crowd()
        async with crowd.admission.ticket("z"):
            await crowd.join("a1", "a2", "a3", "b1", "b2", "b3")
            for name in ("a1", "a2"):
                crowd.tasks.pop(name).cancel()
            await asyncio.sleep(0)
        await crowd.settle()
        assert crowd.served == ["a3", "b1", "b2", "b3"]

    asyncio.run(run())


def test_a_newcomer_displaces_the_newest_of_the_greediest() -> None:
    async def run() -> None:
        crowd = Crowd(queue_limit=4)
        async with crowd.admission.ticket("z"):
            await crowd.join("a1", "a2", "a3", "a4")
            with pytest.raises(Problem, match="all 1 slots are taken and 4 requests wait"):
                crowd.admission.ticket("a")
            await crowd.join("b1", "b2")
            with pytest.raises(Problem):  # two each: nobody is greedier than the newcomer
                crowd.admission.ticket("b")
        results = dict(zip(crowd.tasks, await crowd.settle(), strict=True))
        refused = [name for name, result in results.items() if isinstance(result, Problem)]
        assert refused == ["a3", "a4"]
        assert {results[name].status for name in refused} == {429}  # type: ignore[attr-defined]
        assert (crowd.admission.active, crowd.admission.waiting) == (0, 0)

    asyncio.run(run())


def test_a_displaced_request_that_is_cancelled_as_well_gives_no_place_away() -> None:
    async def run() -> None:
        crowd = Crowd(queue_limit=2)
        async with crowd.admission.ticket("z"):
            await crowd.join("a1", "a2")
            crowd.admission.ticket("b")  # displaces a2 ...
            crowd.tasks["a2"].cancel()  # ... which leaves before it hears of it
            await asyncio.sleep(0)
            assert (crowd.admission.active, crowd.admission.waiting) == (1, 1)
        await crowd.settle()
        assert (crowd.admission.active, crowd.admission.waiting) == (0, 0)

    asyncio.run(run())


def test_two_keys_share_the_queue_on_the_wire(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    file = keys.write("greedy", "modest")
    proxy = start_proxy(slots=1, queue_limit=3, heartbeat_s=0.05, api_keys_file=file)
    greedy, modest = bearer("greedy"), bearer("modest")
    first = hold_slot(proxy, engine, headers=greedy)
    waiting = []
    for n in range(3):
        waiting.append(proxy.post("/chat", {"prompt": f"g{n}"}, **greedy))
        assert waiting[-1].block() == f": queue {n + 1}\n"
    assert proxy.post("/chat", {"prompt": "g3"}, **greedy).status == 429
    late = proxy.post("/chat", {"prompt": "m0"}, **modest)
    assert late.block() == ": queue 2\n"
    assert '"type": "busy"' in waiting[-1].event()  # its stream had begun
    gate = engine.script = Gate()
    gate.open.set()
    first.leave()
    assert [one.text() for one in (*waiting[:2], late)] == ["g0", "g1", "m0"]
    order = [turn.json["messages"][-1]["content"] for turn in engine.turns]
    assert order == ["first", "g0", "m0", "g1"]
