"""Clients that do nothing: they do not read, they send no request, or one without end."""

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from chat_proxy.connection import MAX_CONNECTIONS, MAX_HEAD_BYTES

from edge.sizing import PROXY_MEMORY_MAX
from edge.survey import MIB
from tests.proxy.proxy_process import WAIT_S, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, text_event
from tests.proxy.test_crowd import Gate


def flood(turn: Turn) -> None:
    """More than all buffers on the way hold; ends when the proxy hangs up."""
    turn.begin()
    while True:
        turn.part(text_event("x" * 60_000))


def closed(sock: socket.socket) -> bool:
    """Whether the proxy closes the connection, with or without a word."""
    try:
        while sock.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True  # else recv raised TimeoutError


def sockets(proxy: Proxy) -> int:
    """Open files of the proxy; connections are what changes."""
    return len(list(Path(f"/proc/{proxy.process.pid}/fd").iterdir()))


def test_a_time_limit_does_not_wait_for_a_client_that_does_not_read(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, total_timeout_s=0.5)
    engine.script = flood
    before = sockets(proxy)
    stuck = proxy.chat()
    assert proxy.line(0)["status"] == "504"
    deadline = time.monotonic() + WAIT_S
    while sockets(proxy) > before:  # nothing was read meanwhile
        assert time.monotonic() < deadline, "the connection waits for the client to read"
        time.sleep(0.01)
    stuck.leave()


def test_connections_without_a_request_are_closed(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(head_timeout_s=0.3)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for sent in (b"", b"POST /chat HTTP/1.1\r\nHo", request, request + b"GET / HT"):
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S / 4) as sock:
            sock.sendall(sent)
            assert closed(sock), sent
    # an answer that takes longer than that is not cut
    gone = proxy.chat()
    assert gone.text() == "Hello there"


def test_a_head_without_end_is_not_collected(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy()
    heads = [b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\nHost: " + b"a" * 200_000]
    heads.append(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 40_000)
    for head in heads:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S / 4) as sock:
            with suppress(ConnectionError):  # it may be closed before all is sent
                sock.sendall(head)
            assert closed(sock), head[:30]


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the unit allows; the proxy inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= 8192, "the unit's LimitNOFILE"
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_connections_that_ask_nothing_shut_nobody_out(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """At the limit, those that have asked nothing for longest are closed, and none that has."""
    proxy = start_proxy(head_timeout_s=60, slots=2)
    gate = engine.script = Gate()
    running = proxy.chat("running")
    assert "running" in running.event()
    address = ("127.0.0.1", proxy.port)
    with ExitStack() as stack:
        idle: list[socket.socket] = []
        while len(idle) < MAX_CONNECTIONS + 100:
            idle.append(socket.create_connection(address, timeout=WAIT_S))
            stack.enter_context(idle[-1])
        assert closed(idle[0])
        gate.open.set()
        assert proxy.chat("another").text() == "another"
        assert running.events()[-1]["done"]
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("many_files")
def test_heads_without_end_fit_into_the_memory(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(head_timeout_s=60)
    head = b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * (MAX_HEAD_BYTES - 1000)
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 200):
            sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S)
            stack.enter_context(sock)
            sock.sendall(head)
        assert proxy.chat().text() == "Hello there"
    assert proxy.memory_mib("VmHWM") < PROXY_MEMORY_MAX / MIB * 3 / 4
