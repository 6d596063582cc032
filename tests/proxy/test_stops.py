"""A stop holds nobody up and is held up by nobody, whatever the open connections do."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event
from tests.proxy.wire import HEALTH, Wire, request

CHAT: dict[str, Any] = {"prompt": "hi"}
V1: dict[str, Any] = {"stream": True}
FLOOD: dict[str, Any] = {"prompt": "flood"}


def script(turn: Turn) -> None:
    turn.begin()
    turn.part(text_event("go"))
    while b"flood" in turn.body:
        turn.part(text_event("x" * 60_000))
    turn.wait_gone()


def begun(proxy: Proxy, asked: bytes) -> Wire:
    wire = Wire(proxy).send(asked)
    assert wire.head().status == 200
    assert wire.part()
    return wire


def read_by_now(proxy: Proxy, sent: bytes) -> Wire:
    wire = Wire(proxy).send(sent)
    assert proxy.get("/healthz").status == 200
    return wire


def stop(proxy: Proxy) -> None:
    """By itself: not by uvicorn's last resort, which cancels what still runs, nor by a kill."""
    errors = proxy.stop()
    assert proxy.process.returncode in (0, -15)
    assert "timeout graceful shutdown exceeded" not in errors
    assert "Traceback" not in errors


def test_each_open_request_is_told_and_the_process_ends(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=4, drain_s=0.2, heartbeat_s=0.05)
    engine.script = script
    streams = [begun(proxy, request("/chat", CHAT)), begun(proxy, request("/v1/completions", V1))]
    behind = begun(proxy, request("/chat", CHAT))
    behind.send(request("/chat", CHAT) + HEALTH)
    one = Wire(proxy).send(request("/chat", {**CHAT, "stream": False}))
    engine.turn(3)
    queued = [begun(proxy, request("/chat", CHAT)) for _ in range(2)]  # the part is a comment
    plain = [
        read_by_now(proxy, request("/chat", {**CHAT, "stream": False})),
        read_by_now(proxy, request("/v1/completions", V1)),
        read_by_now(proxy, request("/chat", CHAT)[:-2]),  # its body is on the way
    ]
    silent = [
        read_by_now(proxy, b""),
        read_by_now(proxy, b"POST /chat HTT"),
        Wire(proxy).send(HEALTH),  # kept alive
        Wire(proxy).send(HEALTH),
    ]
    for wire in silent[2:]:
        assert wire.reply().status == 200
    silent[3].send(b"POST /chat HTT")
    proxy.terminate()
    for wire in (*streams, *queued, behind):
        rest = wire.rest()
        assert rest.endswith(b"0\r\n\r\n")
        assert rest.count(b'event: error\ndata: {"error": {"code": 503, "type": "stopping"') == 1
    for wire in (one, *plain):
        reply = wire.reply()
        assert (reply.status, reply.error()["type"]) == (503, "stopping")
        assert reply.headers["retry-after"]
        assert reply.headers["connection"] == "close"
    for wire in silent:
        assert wire.ended()
    stop(proxy)
    assert all(turn.gone.wait(10) for turn in engine.turns)
    for wire in (*streams, *queued, behind, one, *plain, *silent):
        wire.close()


def test_clients_that_do_not_read_hold_up_nothing(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=2, drain_s=0.2)
    engine.script = script
    stuck = [begun(proxy, request("/chat", FLOOD)), begun(proxy, request("/chat", FLOOD))]
    stop(proxy)
    for wire in stuck:
        wire.close()


def test_while_the_engine_is_away(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, drain_s=0.2, heartbeat_s=0.05)
    engine.loading = True
    streams = [begun(proxy, request("/chat", CHAT)) for _ in range(2)]
    plain = read_by_now(proxy, request("/v1/completions", V1))
    proxy.terminate()
    for wire in streams:
        assert b'"type": "stopping"' in wire.rest()
        wire.close()
    assert plain.reply().error()["type"] == "stopping"
    plain.close()
    stop(proxy)


@pytest.mark.parametrize("path", ["/chat", "/v1/completions"])
def test_what_can_finish_within_the_bound_finishes(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], path: str
) -> None:
    """Open answers, and those that wait for their slot."""
    proxy = start_proxy(slots=1, drain_s=20)
    release = threading.Event()

    def slow(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("go"))
        assert release.wait(10)
        turn.part(last_events())
        turn.end()

    engine.script = slow
    asked = request(path, CHAT if path == "/chat" else V1)
    first = begun(proxy, asked)
    waiting = [read_by_now(proxy, asked) for _ in range(3)]
    proxy.terminate()
    release.set()
    end = b"done" if path == "/chat" else b"[DONE]"
    assert end in first.rest()
    for wire in waiting:
        reply = wire.reply()
        assert (reply.status, reply.whole, end in reply.body) == (200, True, True)
        wire.close()
    first.close()
    stop(proxy)


def test_a_restart_under_load_refuses_and_loses_nobody(engine: ScriptedEngine) -> None:
    """The socket is passed as systemd passes it, so it waits for the next process."""
    proxy = Proxy(engine.url, pass_socket=True, drain_s=5, slots=2, queue_limit=64)
    over = threading.Event()

    def served(asked: bytes, sign: bytes) -> int:
        count = 0
        while not over.is_set():
            with Wire(proxy) as wire:
                reply = wire.send(asked).reply()
            assert (reply.status, reply.whole, sign in reply.body) == (200, True, True), reply
            count += 1
        return count

    asked = [
        (request("/chat", CHAT), b"Hello"),
        (request("/chat", {**CHAT, "stream": False}), b"Hello"),
        (request("/v1/chat/completions", V1), b"[DONE]"),
        (request("/chat", {"prompt": "x" * 60_000}), b"Hello"),
        (HEALTH, b"ok"),
    ]
    with ThreadPoolExecutor(len(asked) * 2) as pool:
        try:
            clients: list[Future[int]] = [pool.submit(served, *one) for one in asked * 2]
            for _ in range(3):
                assert proxy.stop() == ""
                proxy.start(pass_socket=True)
        finally:
            over.set()
        counts = [one.result() for one in clients]
    assert min(counts) > 0
    assert proxy.stop() == ""
    proxy.listener.close()
