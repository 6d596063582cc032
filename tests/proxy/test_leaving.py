"""Clients that leave, at every stage and in every way: the place is free, the engine stops.

A client that closes only its sending side (shutdown(SHUT_WR)) counts as one that has left: the
wire does not tell the two apart, and a slot must not wait for an answer that nobody takes. nginx
and HAProxy (option abortonclose) do the same. `nc -N` and the like must keep their side open.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.proxy.proxy_process import Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, text_event
from tests.proxy.wire import Wire, request

PATHS: dict[str, dict[str, Any]] = {
    "/chat": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "stream": True},
}


def forever(turn: Turn) -> None:
    turn.begin()
    turn.part(text_event("go"))
    turn.wait_gone()


def status_only(turn: Turn) -> None:
    turn.begin()
    turn.wait_gone()


def fin(wire: Wire) -> None:
    wire.close()


def reset(wire: Wire) -> None:
    wire.reset()


def half(wire: Wire) -> None:
    wire.half_close()
    assert not wire.rest().endswith(b"0\r\n\r\n")  # closed, with no end of an answer
    wire.close()


ways = pytest.mark.parametrize("leave", [fin, reset, half])
paths = pytest.mark.parametrize("path", PATHS)
Leave = Callable[[Wire], None]


def ask(proxy: Proxy, path: str, **more: Any) -> Wire:
    proxy.sent += 1
    return Wire(proxy).send(request(path, {**PATHS[path], **more}))


def assert_left(proxy: Proxy, line: int) -> None:
    found = proxy.line(line)
    assert (found["status"], found["finish"]) == ("499", "client-left")


def assert_serves(proxy: Proxy, engine: ScriptedEngine) -> None:
    """The only slot is free."""
    engine.script = lambda turn: turn.say("next")
    assert proxy.chat().text() == "next"


def hold_slot(proxy: Proxy, engine: ScriptedEngine) -> Answer:
    engine.script = forever
    first = proxy.chat("first")
    assert first.event() == 'data: {"text": "go"}\n'
    return first


@paths
@ways
def test_while_the_body_is_sent(
    engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave
) -> None:
    whole = request(path, PATHS[path])
    for sent in (whole[:-1], whole[: whole.index(b"\r\n\r\n") + 4]):
        proxy.sent += 1
        wire = Wire(proxy).send(sent)
        assert proxy.get("/healthz").status == 200  # by now the proxy has read that
        leave(wire)
    assert_left(proxy, 0)
    assert_left(proxy, 1)
    assert engine.turns == []
    assert_serves(proxy, engine)


@paths
@ways
def test_while_queued(engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave) -> None:
    first = hold_slot(proxy, engine)
    # four fill the queue, so a fifth is refused until one of them has left
    waiting = [ask(proxy, path) for _ in range(4)]
    assert proxy.chat().status == 429
    leave(waiting[0])
    assert_left(proxy, 1)
    waiting.append(ask(proxy, path, stream=False))
    assert proxy.chat().status == 429
    for number, wire in enumerate(waiting[1:]):
        leave(wire)
        assert_left(proxy, number + 3)
    first.leave()
    assert engine.turn(0).gone.wait(10)
    assert_serves(proxy, engine)
    assert len(engine.turns) == 2  # none of them came to the engine


@paths
@ways
@pytest.mark.parametrize("script", [Turn.wait_gone, status_only])
def test_before_the_first_token(
    engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave, script: Callable[[Turn], None]
) -> None:
    engine.script = script
    wire = ask(proxy, path)
    turn = engine.turn(0)
    leave(wire)
    assert turn.gone.wait(10)
    assert_left(proxy, 0)
    assert_serves(proxy, engine)


@paths
@ways
def test_in_the_middle(engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave) -> None:
    engine.script = forever
    wire = ask(proxy, path)
    assert wire.head().status == 200
    assert b"go" in wire.part()
    leave(wire)
    assert engine.turn(0).gone.wait(10)
    assert_left(proxy, 0)
    assert_serves(proxy, engine)


@paths
@ways
@pytest.mark.parametrize("script", [Turn.wait_gone, forever])
def test_without_stream(
    engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave, script: Callable[[Turn], None]
) -> None:
    engine.script = script
    wire = ask(proxy, path, stream=False)
    turn = engine.turn(0)
    leave(wire)
    assert turn.gone.wait(10)
    assert_left(proxy, 0)
    assert_serves(proxy, engine)


@paths
@ways
def test_while_the_engine_is_away(
    engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave
) -> None:
    engine.loading = True
    wires = [ask(proxy, path), ask(proxy, path, stream=False)]
    assert proxy.get("/readyz").status == 503
    for number, wire in enumerate(wires):
        leave(wire)
        assert_left(proxy, number)
    engine.loading = False
    assert_serves(proxy, engine)


@paths
@ways
def test_when_the_answer_is_complete(
    engine: ScriptedEngine, proxy: Proxy, path: str, leave: Leave
) -> None:
    wire = ask(proxy, path)
    assert wire.reply().whole
    leave(wire)
    assert proxy.line(0)["status"] == "200"
    assert_serves(proxy, engine)


def test_an_answer_that_is_there_reaches_a_client_that_closed_its_side(proxy: Proxy) -> None:
    """`printf … | nc -N`, as a health check asks."""
    wire = Wire(proxy).send(b"GET /healthz HTTP/1.0\r\n\r\n")
    wire.half_close()
    assert wire.reply().json() == {"status": "ok"}
    assert wire.ended()
    wire.close()


def test_a_crowd_that_leaves_at_once(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=8, queue_limit=92)
    engine.script = forever
    crowd = [ask(proxy, path, stream=bool(n % 3)) for n in range(50) for path in PATHS]
    engine.turn(7)
    for number, wire in enumerate(crowd):
        (fin, reset, half)[number % 3](wire)
    for number in range(100):
        assert_left(proxy, number)
    assert all(turn.gone.wait(10) for turn in engine.turns)
    engine.script = lambda turn: turn.say("next")
    assert [one.text() for one in [proxy.chat() for _ in range(100)]] == ["next"] * 100
