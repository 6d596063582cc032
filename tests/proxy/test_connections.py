"""Clients that do nothing: they do not read, they send no request, or one without end."""

import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chat_proxy.connection import MAX_CONNECTIONS

from tests.proxy.proxy_process import WAIT_S, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, text_event


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


def test_connections_are_counted(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    """More than the limit at once: the last is closed, a place that comes free is used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= 8192, "the unit's LimitNOFILE"
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))  # the proxy inherits it
    idle: list[socket.socket] = []
    try:
        proxy = start_proxy(head_timeout_s=60)
        address = ("127.0.0.1", proxy.port)
        while len(idle) < MAX_CONNECTIONS + 100:
            idle.append(socket.create_connection(address, timeout=WAIT_S))
        assert closed(idle[-1])
        for one in idle:
            one.close()
        assert proxy.chat().text() == "Hello there"
    finally:
        for one in idle:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
