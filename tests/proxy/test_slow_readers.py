"""Clients that read slowly or not at all: the proxy's memory is bounded, others are not held up."""

import threading
from collections.abc import Callable

import pytest

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event
from tests.proxy.wire import Wire, request

PATHS = {
    "/chat": {"prompt": "flood"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "flood"}], "stream": True},
}
paths = pytest.mark.parametrize("path", PATHS)
PIECE = text_event("x" * 60_000)


class Flood:
    """More than all buffers on the way hold; `stuck` when nobody takes more of it."""

    def __init__(self) -> None:
        self.stuck = threading.Semaphore(0)

    def __call__(self, turn: Turn) -> None:
        if b"flood" not in turn.body:
            turn.say("quick")
            return
        turn.begin()
        turn.sock.settimeout(0.3)
        while True:
            try:
                turn.part(PIECE)
            except TimeoutError:
                break
        self.stuck.release()
        turn.wait_gone()


@paths
def test_twenty_that_do_not_read(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], path: str
) -> None:
    proxy = start_proxy(slots=21)
    flood = engine.script = Flood()
    assert proxy.chat().text() == "quick"
    before = proxy.memory_mib("VmRSS")
    slow = [Wire(proxy, receive_buffer=1 << 16).send(request(path, PATHS[path])) for _ in range(20)]
    for _ in slow:
        assert flood.stuck.acquire(timeout=30)
    assert (
        proxy.memory_mib("VmRSS") - before < 20 * 2
    )  # about one, and no more however long it lasts
    # nobody else is held up: neither by their slots nor by their bytes
    assert proxy.chat().text() == "quick"
    assert proxy.get("/healthz").status == 200
    for one in slow:
        one.reset()
    assert all(turn.gone.wait(10) for turn in engine.turns[1:21])


@paths
def test_cut_off_after_the_time_limit_and_the_next_is_served(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], path: str
) -> None:
    proxy = start_proxy(slots=1, write_timeout_s=0.4)
    engine.script = Flood()
    wire = Wire(proxy, receive_buffer=1 << 16).send(request(path, PATHS[path]))
    engine.turn(0)
    assert proxy.chat().text() == "quick"  # it waited for the slot
    line = proxy.line(0)
    assert (line["status"], line["finish"]) == ("499", "client-stalled")
    assert engine.turn(0).gone.wait(10)
    assert wire.head().status == 200
    assert not wire.rest().endswith(b"0\r\n\r\n")
    wire.close()


@paths
def test_slow_and_steady_is_spared(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], path: str
) -> None:
    """It takes a little all the time, over many times the limit, and then all the rest."""
    limit_s = 0.4
    proxy = start_proxy(slots=1, write_timeout_s=limit_s)
    pieces = 150  # 9 MB: more than the kernel's buffers

    def script(turn: Turn) -> None:
        turn.begin()
        for _ in range(pieces):
            turn.part(PIECE)
        turn.part(last_events())
        turn.end()

    engine.script = script
    with Wire(proxy, receive_buffer=1 << 14) as wire:
        wire.send(request(path, PATHS[path]))
        assert wire.head().status == 200
        whole = wire.slow_body(5 * limit_s)
    assert whole.count(b"x" * 60_000) == pieces
    assert proxy.line(0)["status"] == "200"


def test_a_slow_reader_does_not_keep_its_slot_to_the_last_byte(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """The engine is done with it, so the next is served while it reads."""
    proxy = start_proxy(slots=1)
    pieces = 4

    def script(turn: Turn) -> None:
        if b"flood" not in turn.body:
            turn.say("quick")
            return
        turn.stream(*[PIECE] * pieces, last_events())

    engine.script = script
    for stream in (True, False):
        wire = Wire(proxy, receive_buffer=1 << 14)
        wire.send(request("/chat", {"prompt": "flood", "stream": stream}))
        engine.turn(len(proxy.lines))
        assert proxy.chat().text() == "quick"
        reply = wire.reply()
        assert reply.body.count(b"x" * 60_000) == pieces
        wire.close()
