"""HTTP/1.1 as clients really speak it: pipelined, kept alive, old, odd, and malicious."""

import json
import threading
from collections.abc import Callable

import pytest
from chat_proxy.connection import MAX_PIPELINED
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event
from tests.proxy.wire import BODY, CHUNKED, HEALTH, Wire, done, head, request

ASK = request("/chat", {"prompt": "hi"})
PATHS = {
    "/chat": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [], "stream": True},
}


def forever(turn: Turn) -> None:
    turn.begin()
    turn.part(text_event("go"))
    turn.wait_gone()


def test_pipelined_requests_are_answered_in_order(engine: ScriptedEngine, proxy: Proxy) -> None:
    with Wire(proxy) as wire:
        wire.send(HEALTH + HEALTH + ASK + HEALTH + ASK + ASK)
        proxy.sent += 3
        replies = [wire.reply() for _ in range(6)]
        assert [one.json() for one in replies if b"status" in one.body] == [{"status": "ok"}] * 3
        assert [done(one) for one in replies] == [False, False, True, False, True, True]
        wire.send(HEALTH)
        assert wire.reply().status == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_request_behind_a_stream_waits_for_its_end(
    engine: ScriptedEngine, proxy: Proxy, path: str
) -> None:
    release = threading.Event()

    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("go"))
        assert release.wait(10)
        turn.part(last_events())
        turn.end()

    engine.script = script
    with Wire(proxy) as wire:
        wire.send(request(path, PATHS[path]))
        proxy.sent += 1
        assert wire.head().status == 200
        assert b"go" in wire.part()
        wire.send(HEALTH)
        assert proxy.get("/healthz").status == 200  # by now the proxy has read the one behind
        release.set()
        while wire.part():
            pass
        assert wire.reply().json() == {"status": "ok"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("together", [True, False])
def test_leaving_with_requests_still_unanswered_stops_the_engine(
    engine: ScriptedEngine, proxy: Proxy, path: str, together: bool
) -> None:
    engine.script = forever
    wire = Wire(proxy)
    ask = request(path, PATHS[path])
    wire.send(ask + (ask if together else b""))
    turn = engine.turn(0)
    assert wire.head().status == 200
    assert b"go" in wire.part()
    if not together:
        wire.send(HEALTH + ask)
        assert proxy.get("/healthz").status == 200
    wire.close()
    proxy.sent += 1  # the one behind is not begun
    assert turn.gone.wait(10)
    assert proxy.line(0)["finish"] == "client-left"
    engine.script = lambda turn: turn.say("next")
    assert proxy.chat().text() == "next"
    assert len(engine.turns) == 2


def test_requests_sent_ahead_are_bounded(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """Many small ones, and bodies that nobody reads yet."""
    proxy = start_proxy(slots=3)
    with Wire(proxy) as wire:
        wire.send(HEALTH * MAX_PIPELINED)
        assert [wire.reply().status for _ in range(MAX_PIPELINED)] == [200] * MAX_PIPELINED
    engine.script = forever
    before = proxy.memory_mib("VmHWM")
    for number, behind in enumerate((HEALTH, request("/chat", b"x" * 60_000))):
        wire = Wire(proxy)
        wire.send(ASK)
        wire.head()
        wire.part()
        with pytest.raises(ConnectionError):
            wire.send(behind * (200_000_000 // len(behind)))
        assert engine.turn(number).gone.wait(10)
        wire.close()
    assert proxy.memory_mib("VmHWM") < before + 8


def test_garbage_behind_a_stream_is_no_part_of_it(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = forever
    with Wire(proxy) as wire:
        wire.send(ASK)
        proxy.sent += 1
        assert wire.head().status == 200
        assert wire.part() == b'data: {"text": "go"}\n\n'
        wire.send(b"rubbish\r\n\r\n")
        assert wire.ended()
    assert engine.turn(0).gone.wait(10)


def test_a_connection_is_used_again_after_every_kind_of_end(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    def breaks(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("Hel"))
        turn.wait_read()
        turn.die()

    plain = {"prompt": "hi", "stream": False}
    ends: list[tuple[Callable[[Turn], None], bytes, int]] = [
        (lambda turn: turn.say("x"), ASK, 200),
        (lambda turn: turn.say("x"), request("/chat", plain), 200),
        (breaks, ASK, 200),  # with an error event
        (breaks, request("/chat", plain), 502),
        (lambda turn: turn.say("x"), request("/v1/completions", {"stream": True}), 200),
        (breaks, request("/v1/completions", {"stream": True}), 200),
        (lambda turn: turn.plain(200, b"{}"), request("/v1/completions", {}), 200),
        (lambda turn: turn.plain(500, b"<html>"), request("/v1/completions", {}), 500),
        (Turn.die, ASK, 502),
        (Turn.die, request("/chat", b"{"), 400),
        (Turn.die, request("/chat", b"x" * 98_305), 413),
        (Turn.die, request("/chat", BODY, "Origin: http://evil.example"), 403),
        (lambda turn: turn.plain(200, b"{}"), head("GET /v1/models HTTP/1.1", "Host: x"), 200),
        (Turn.die, head("GET /nope HTTP/1.1", "Host: x"), 404),
        (Turn.die, head("DELETE /chat HTTP/1.1", "Host: x"), 405),
    ]
    with Wire(proxy) as wire:
        for script, asked, status in ends:
            engine.script = script
            wire.send(asked)
            reply = wire.reply()
            assert (reply.status, reply.whole) == (status, True), asked[:80]
            assert reply.headers.get("connection") is None
    proxy.sent += len(ends) - 2


@pytest.mark.parametrize("keep", [(), ("Connection: keep-alive",)])
def test_a_client_of_http_1_0_gets_no_chunks(
    engine: ScriptedEngine, proxy: Proxy, keep: tuple[str, ...]
) -> None:
    engine.script = lambda turn: turn.say("你", "好")
    expected = 'data: {"text": "你"}\n\ndata: {"text": "好"}\n\n'.encode()
    with Wire(proxy) as wire:
        reply = wire.send(request("/chat", BODY, *keep, version="1.0")).reply()
        assert "transfer-encoding" not in reply.headers
        assert "content-length" not in reply.headers
        assert reply.headers["connection"] == "close"
        assert reply.body.startswith(expected)
        assert json.loads(reply.body.split(b"data: ")[-1])["done"]
    with Wire(proxy) as wire:
        reply = wire.send(
            request("/v1/completions", {"stream": True}, *keep, version="1.0")
        ).reply()
        assert reply.body.endswith(b"data: [DONE]\n\n")
    proxy.sent += 2
    for asked in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /healthz\r\n\r\n"):
        with Wire(proxy) as wire:
            reply = wire.send(asked).reply()
            assert (reply.json(), reply.headers["content-length"]) == ({"status": "ok"}, "15")
            assert wire.ended()


def test_a_slow_client_of_http_1_0_gets_all_of_it(engine: ScriptedEngine, proxy: Proxy) -> None:
    parts = [text_event(f"{n} " + "x" * 60_000) for n in range(40)]
    whole = b"".join(parts) + b"data: [DONE]\n\n"
    engine.script = lambda turn: turn.stream(*parts, b"data: [DONE]\n\n")
    with Wire(proxy, receive_buffer=1 << 16) as wire:
        wire.send(request("/v1/completions", {"stream": True}, version="1.0"))
        proxy.sent += 1
        assert wire.reply().body == whole


def test_expect_100_continue(engine: ScriptedEngine, proxy: Proxy) -> None:
    lines = ("POST /chat HTTP/1.1", "Host: x", "Expect: 100-continue")
    with Wire(proxy) as wire:
        wire.send(head(*lines, f"Content-Length: {len(BODY)}"))
        assert wire.reply().status == 100
        assert done(wire.send(BODY).reply())
        wire.send(head(*lines, "Transfer-Encoding: chunked"))
        assert wire.reply().status == 100
        assert done(
            wire.send(b"4\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:4], 12, BODY[4:])).reply()
        )
    with Wire(proxy) as wire:  # what would be refused is not asked for
        wire.send(head(*lines, "Content-Length: 98305"))
        assert wire.reply().status == 413
    proxy.sent += 3


def test_a_body_in_chunks_of_any_size(engine: ScriptedEngine, proxy: Proxy) -> None:
    body = '{"prompt": "你好 👩‍🔬"}'.encode()
    with Wire(proxy) as wire:
        for size in (1, 2, 3, len(body)):
            wire.send(head("POST /chat HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"))
            for at in range(0, len(body), size):
                part = body[at : at + size]
                wire.send(b"%x;ext=1\r\n%b\r\n" % (len(part), part))
            wire.send(b"0\r\nOrigin: http://a-trailer.example\r\n\r\n")
            assert done(wire.reply())
    proxy.sent += 4
    assert [turn.json["messages"][0]["content"] for turn in engine.turns] == ["你好 👩‍🔬"] * 4


def test_targets(engine: ScriptedEngine, proxy: Proxy) -> None:
    asked = {
        "GET http://other.example/healthz": 200,
        "GET /health%7A": 200,
        "GET /healthz?a=%ff&b": 200,
        "POST /%63hat": 200,
        "GET //healthz": 404,
        "GET /./healthz": 404,
        "GET /healthz/../chat": 404,
        "GET /healthz%00": 404,
        "GET /%2e%2e/%2e%2e/etc/passwd": 404,
        "GET /%ff%fe": 404,
        "GET /%zz": 404,
        "OPTIONS *": 404,
        "TRACE /healthz": 405,
        "PROPFIND /chat": 405,
    }
    with Wire(proxy) as wire:
        for target, status in asked.items():
            body = BODY if target.startswith("POST") else b""
            lines = [f"{target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
            reply = wire.send(head(*lines) + body).reply()
            assert (reply.status, reply.whole) == (status, True), target
            if status != 200:
                assert reply.error()["code"] == status
    proxy.sent += 1


def test_a_long_path_is_not_sent_back(proxy: Proxy) -> None:
    with Wire(proxy) as wire:
        reply = wire.send(head("GET /" + "a" * 60_000 + " HTTP/1.1", "Host: x")).reply()
        assert reply.error()["message"].startswith("GET /aaaa")
        assert len(reply.body) < 400


@pytest.mark.parametrize("host", ["Host: [", "Host: \xff\xfe@/", "Host:", "X: y", "Host: a b"])
def test_any_host(engine: ScriptedEngine, proxy: Proxy, host: str) -> None:
    with Wire(proxy) as wire:
        lines = head("GET /nope HTTP/1.1", host)
        assert wire.send(lines).reply().status == 404
        assert done(wire.send(request("/chat", BODY, host=host)).reply())
    proxy.sent += 1


def test_large_heads_that_are_allowed(engine: ScriptedEngine, proxy: Proxy) -> None:
    with Wire(proxy) as wire:
        assert done(wire.send(request("/chat", BODY, "A: " + "a" * 30_000)).reply())
        assert done(wire.send(request("/chat", BODY, *[f"A{n}: b" for n in range(2000)])).reply())
    proxy.sent += 2


OFFERS = {
    "HTTP/2": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA"),
    "websocket": ("Connection: keep-alive, Upgrade", "Upgrade: websocket"),
}


@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_to_speak_another_protocol_is_passed_over(
    engine: ScriptedEngine, proxy: Proxy, offer: str
) -> None:
    """curl --http2 and Java's HttpClient make one with every request."""
    with Wire(proxy) as wire:
        asked = request("/chat", {"prompt": "x" * 60_000}, *OFFERS[offer])
        wire.send(asked + HEALTH)
        assert done(wire.reply())
        assert wire.reply().json() == {"status": "ok"}
        for at in range(len(asked) - 60_100, len(asked) - 59_980, 17):  # around the head's end
            wire.send(asked[:at])
            assert proxy.get("/healthz").status == 200  # the part before has been read
            assert done(wire.send(asked[at:]).reply())
            proxy.sent += 1
        chunked = head(
            "POST /chat HTTP/1.1", "Host: x", *OFFERS[offer], "Transfer-Encoding: chunked"
        )
        assert done(wire.send(chunked + CHUNKED).reply())
        lines = ("GET /healthz HTTP/1.1", "Host: x", *OFFERS[offer])
        assert wire.send(head(*lines)).reply().json() == {"status": "ok"}
        assert wire.send(head(*lines)).reply().json() == {"status": "ok"}
    proxy.sent += 2
    assert {len(turn.json["messages"][0]["content"]) for turn in engine.turns} == {60_000, 2}


BASES = [
    HEALTH + HEALTH,
    ASK + HEALTH,
    request("/chat", b"5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    request("/v1/chat/completions", BODY, "Expect: 100-continue", "Origin: http://x"),
    request("/v1/completions", BODY, *OFFERS["HTTP/2"], "Connection: close", version="1.0"),
    head("HEAD /chat HTTP/1.1", "Host: x") + HEALTH,
    head("OPTIONS * HTTP/1.1", "Host: x", "Content-Length: 0") + ASK,
]
ODD = [b"\r", b"\n", b"\r\n\r\n", b"\0", b" ", b":", b"%", b"/", b"\xff", b"9" * 20, b"a" * 9000]
edits = st.lists(
    st.tuples(st.integers(0, 250), st.integers(0, 3), st.sampled_from(ODD) | st.binary(max_size=3)),
    min_size=1,
    max_size=3,
)


def test_requests_with_damage(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    """Whatever comes is answered or closed, and never an error of the proxy."""
    proxy = start_proxy(slots=4)

    @settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @given(base=st.sampled_from(BASES), changes=edits)
    def run(base: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        for at, removed, added in changes:
            base = base[:at] + added + base[at + removed :]
        with Wire(proxy) as wire:
            wire.send(base)
            wire.half_close()
            answers = wire.rest()
        assert answers == b"" or answers.startswith(b"HTTP/1.1 ")
        assert b"HTTP/1.1 5" not in answers

    run()
    assert proxy.chat().text() == "Hello there"
    assert "failed" not in proxy.stop()
