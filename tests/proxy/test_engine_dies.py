"""An engine that dies, lies or falls silent: the client is told, whatever has gone out before."""

from collections.abc import Callable
from typing import Any

import pytest
from chat_proxy.sse import MAX_EVENT_BYTES

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, chunk_event, last_events, text_event
from tests.proxy.wire import HEALTH, Reply, Wire, request

CHAT: dict[str, Any] = {"prompt": "hi"}
V1: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
ASKED = {
    "chat": request("/chat", CHAT),
    "chat in one": request("/chat", {**CHAT, "stream": False}),
    "v1": request("/v1/chat/completions", {**V1, "stream": True}),
}
SAID = text_event("Hel")


def begun(turn: Turn) -> None:
    turn.begin()
    turn.part(SAID)
    turn.wait_read()


def close(turn: Turn) -> None:
    turn.sock.close()


def reset(turn: Turn) -> None:
    begun(turn)
    turn.die()


def fin(turn: Turn) -> None:
    begun(turn)
    close(turn)


def proper_end(turn: Turn) -> None:
    """A llama-server that is told to stop."""
    begun(turn)
    turn.end()


def inside_an_event(turn: Turn) -> None:
    begun(turn)
    turn.part(SAID[:-5])
    turn.wait_read()
    turn.die()


def inside_a_chunk(turn: Turn) -> None:
    begun(turn)
    turn.raw(b"ff\r\n" + SAID[:-5])
    close(turn)


def inside_a_size(turn: Turn) -> None:
    begun(turn)
    turn.raw(b"1f")
    close(turn)


def no_size(turn: Turn) -> None:
    begun(turn)
    turn.raw(b"what\r\nis this?\r\n")
    turn.wait_gone()


BROKEN = [
    reset, fin, proper_end, inside_an_event, inside_a_chunk, inside_a_size, no_size,
]  # fmt: skip


def asks(proxy: Proxy, kind: str) -> Reply:
    """The answer; the connection serves another request after it."""
    with Wire(proxy) as wire:
        wire.send(ASKED[kind])
        proxy.sent += 1
        reply = wire.reply()
        assert reply.whole, reply
        assert wire.send(HEALTH).reply().json() == {"status": "ok"}
    return reply


def assert_serves(proxy: Proxy, engine: ScriptedEngine) -> None:
    engine.script = lambda turn: turn.say("next")
    assert proxy.chat().text() == "next"


@pytest.mark.parametrize("script", BROKEN)
@pytest.mark.parametrize("kind", ASKED)
def test_in_the_middle_of_an_answer(
    engine: ScriptedEngine, proxy: Proxy, kind: str, script: Callable[[Turn], None]
) -> None:
    engine.script = script
    reply = asks(proxy, kind)
    assert reply.error()["type"] == "engine_died"
    assert proxy.line(0)["status"] == "502"
    assert len(engine.turns) == 1  # what was told cannot be told again
    if kind == "chat in one":
        assert reply.status == 502
    else:
        assert reply.status == 200
        start = SAID if kind == "v1" else b'data: {"text": "Hel"}\n\n'
        assert reply.body.startswith(start)
        assert b"[DONE]" not in reply.body
        assert b'"done"' not in reply.body
    assert_serves(proxy, engine)


LIES = {
    "no JSON": b"data: {not json\n\n",
    "no chunk": b"data: 5\n\n",
    "half a character": b'data: {"choices": [{"delta": {"content": "\xe4\xbd"}}]}\n\n',
    "an error": b'data: {"error": {"code": 500, "message": "out of\\n memory"}}\n\n',
    "no choices": chunk_event(),
    "a text that is none": b'data: {"choices": 3}\n\n',
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("kind", ["chat", "chat in one"])
def test_an_event_that_is_none(engine: ScriptedEngine, proxy: Proxy, kind: str, name: str) -> None:
    engine.script = lambda turn: turn.stream(SAID, LIES[name], last_events())
    reply = asks(proxy, kind)
    assert reply.error()["type"] == "engine_error"
    assert reply.status == (200 if kind == "chat" else 502)
    assert_serves(proxy, engine)


def test_a_last_event_without_a_reason(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: turn.stream(SAID, b"data: [DONE]\n\n")
    for kind in ("chat", "chat in one"):
        assert asks(proxy, kind).error()["type"] == "engine_died"


def test_an_event_without_end(engine: ScriptedEngine, proxy: Proxy) -> None:
    def script(turn: Turn) -> None:
        begun(turn)
        while True:
            turn.part(b"x" * (MAX_EVENT_BYTES // 16))

    engine.script = script
    assert asks(proxy, "chat").error()["type"] == "engine_error"
    assert engine.turn(0).gone.wait(10)
    assert_serves(proxy, engine)


def test_v1_hands_on_the_engines_own_error(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: turn.stream(SAID, LIES["an error"])
    reply = asks(proxy, "v1")
    assert reply.body == SAID + LIES["an error"]


def no_http(turn: Turn) -> None:
    turn.raw(b"SSH-2.0-OpenSSH_9.9\r\n")
    turn.wait_gone()


def half_a_head(turn: Turn) -> None:
    turn.raw(b"HTTP/1.1 200 OK\r\nContent-Ty")
    close(turn)


def a_head_without_end(turn: Turn) -> None:
    turn.raw(b"HTTP/1.1 200 OK\r\n")
    while True:
        turn.raw(b"A: " + b"b" * 1000 + b"\r\n")


def a_head_only(turn: Turn) -> None:
    turn.begin()
    close(turn)


def an_empty_body(turn: Turn) -> None:
    turn.begin()
    turn.end()


SILENT = [Turn.die, close, no_http, half_a_head, a_head_without_end, a_head_only, an_empty_body]


@pytest.mark.parametrize(
    ("kind", "script"), [*(("chat", one) for one in SILENT), ("v1", Turn.die), ("v1", a_head_only)]
)
def test_before_the_first_byte_it_is_asked_once_more(
    engine: ScriptedEngine, proxy: Proxy, kind: str, script: Callable[[Turn], None]
) -> None:
    def once(turn: Turn) -> None:
        engine.script = lambda turn: turn.say("again")
        script(turn)

    engine.script = once
    reply = asks(proxy, kind)
    assert (reply.status, b"again" in reply.body) == (200, True)
    engine.script = script
    reply = asks(proxy, kind)
    assert (reply.status, reply.error()["type"]) == (502, "engine_died")
    assert len(engine.turns) == 4
    assert_serves(proxy, engine)


def test_an_answer_that_is_no_stream(engine: ScriptedEngine, proxy: Proxy) -> None:
    """Something else listens on the engine's port, or stands in front of it."""
    page = b"<!doctype html><title>Oops</title>" + b"<p>secret" * 1000
    for status in (200, 404, 500, 502):
        engine.script = lambda turn, status=status: turn.plain(status, page, "text/html")
        for kind in ("chat", "chat in one"):
            reply = asks(proxy, kind)
            assert (reply.status, reply.error()["type"]) == (502, "engine_error")
            assert f"status {status}" in reply.error()["message"]
            assert b"secret" not in reply.body
        reply = asks(proxy, "v1")  # as it is
        assert (reply.status, reply.body) == (status, page)
        assert reply.headers["content-type"] == "text/html"
    assert_serves(proxy, engine)


def test_an_engine_that_says_nothing(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, first_token_timeout_s=0.2, total_timeout_s=0.3)

    def pings(turn: Turn) -> None:
        """It answers, but its bytes are no token."""
        turn.begin()
        turn.part(b":\n\n")
        turn.wait_gone()

    number = 0
    for script in (Turn.wait_gone, pings):
        for kind in ASKED:
            engine.script = script
            reply = asks(proxy, kind)
            assert reply.error()["code"] == 504
            expected = (
                "total_timeout"
                if kind == "v1" and script != Turn.wait_gone
                else "first_token_timeout"
            )
            assert reply.error()["type"] == expected, kind
            assert engine.turn(number).gone.wait(10)
            number += 1
    assert_serves(proxy, engine)


@pytest.mark.parametrize("said", ["error", "[DONE]", 'data: [DONE]\n\ndata: {"error": 1}'])
@pytest.mark.parametrize("kind", ["chat", "v1"])
def test_the_words_of_an_answer_do_not_end_it(
    engine: ScriptedEngine, proxy: Proxy, kind: str, said: str
) -> None:
    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event(said))
        turn.end()

    engine.script = script
    assert asks(proxy, kind).error()["type"] == "engine_died"
    with Wire(proxy) as wire:
        engine.script = lambda turn: (turn.begin(), turn.part(text_event(said)), turn.wait_gone())[
            0
        ]
        wire.send(ASKED[kind])
        wire.head()
        wire.part()
    proxy.sent += 1
    assert engine.turn(1).gone.wait(10)  # it is stopped for a client that left then
