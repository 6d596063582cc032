"""The queue: in order, bounded, and told about while a client waits in it."""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.proxy.proxy_process import Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event


class Gate:
    """A script that begins an answer, and ends it when told; it notices a proxy that hangs up."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, turn: Turn) -> None:
        turn.begin()
        turn.part(text_event(turn.json["messages"][-1]["content"]))
        if self.open.wait(10):
            turn.part(last_events())
            turn.end()


def forever(turn: Turn) -> None:
    turn.begin()
    turn.part(text_event("go"))
    turn.wait_gone()


def hold_slot(
    proxy: Proxy,
    engine: ScriptedEngine,
    number: int = 0,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    """A client whose answer goes on; the engine's request is number `number`."""
    engine.script = forever
    first = proxy.post("/chat", {"prompt": "first"}, **headers)
    assert first.event() == 'data: {"text": "go"}\n'
    engine.turn(number)
    return first


def test_as_many_as_slots_then_a_queue_in_order_then_429(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=2, queue_limit=3, heartbeat_s=0.05)
    gate = engine.script = Gate()
    running = [proxy.chat(f"r{n}") for n in range(2)]
    assert {one.event() for one in running} == {f'data: {{"text": "r{n}"}}\n' for n in range(2)}
    queued = []
    for n in range(3):
        queued.append(proxy.chat(f"q{n}"))
        assert queued[-1].block() == f": queue {n + 1}\n"
    assert len(engine.turns) == 2
    refused = proxy.chat("too many")
    assert refused.status == 429
    assert int(refused.header("retry-after") or "") == refused.json()["error"]["retry_after"] >= 1
    assert proxy.post("/v1/chat/completions", {"messages": []}).status == 429
    after = engine.script = Gate()
    gate.open.set()
    for one in running:
        assert one.events()[-1]["done"]
    engine.turn(3)  # two slots came free at once
    asked = [turn.json["messages"][-1]["content"] for turn in engine.turns[2:]]
    assert sorted(asked) == ["q0", "q1"]
    after.open.set()
    for n, one in enumerate(queued):
        assert one.text() == f"q{n}"
    assert engine.turns[4].json["messages"][-1]["content"] == "q2"


def test_with_one_slot_the_queue_is_served_in_order(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, queue_limit=8, heartbeat_s=0.05)
    first = hold_slot(proxy, engine)
    queued = []
    for n in range(6):
        queued.append(proxy.chat(f"q{n}"))
        assert queued[-1].block() == f": queue {n + 1}\n"
    engine.script = lambda turn: turn.say("x")
    queued[2].leave()
    assert proxy.line(0)["status"] == "499"
    assert "1" in {queued[0].block()[-2]}
    first.leave()
    assert all(one.text() == "x" for n, one in enumerate(queued) if n != 2)
    order = [turn.json["messages"][-1]["content"] for turn in engine.turns]
    assert order == ["first", "q0", "q1", "q3", "q4", "q5"]


def test_nobody_may_wait_when_the_limit_is_zero(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, queue_limit=0)
    first = hold_slot(proxy, engine)
    assert proxy.chat().status == 429
    first.leave()
    assert engine.turn(0).gone.wait(10)
    assert proxy.line(1)["status"] == "499"
    engine.script = lambda turn: turn.say("x")
    assert proxy.chat().text() == "x"


def test_a_queue_that_takes_too_long(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(queue_wait_s=0.2)
    first = hold_slot(proxy, engine)
    late = proxy.chat()
    assert late.status == 503
    assert late.header("retry-after")
    assert late.json()["error"]["type"] == "queue_timeout"
    first.leave()


def test_heartbeats_before_the_first_token_only(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(heartbeat_s=0.05)
    beats = threading.Event()

    def script(turn: Turn) -> None:
        turn.begin()
        assert beats.wait(10)
        turn.part(text_event("a"))
        turn.wait_read()
        turn.part(text_event("b") + last_events())
        turn.end()

    engine.script = script
    answer = proxy.chat()
    assert [answer.block() for _ in range(2)] == [": prompt\n"] * 2
    beats.set()
    rest = [answer.block() for _ in range(100)]
    data = [one for one in rest if one.startswith("data")]
    assert [one[:14] for one in data] == ['data: {"text":', 'data: {"text":', 'data: {"done":']
    after = rest[rest.index(data[0]) :]
    assert not any(one.startswith(":") for one in after)
