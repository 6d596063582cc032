"""Connections as uvicorn makes them, with bounds that it has no settings for."""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import httptools
from starlette.types import Scope
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .problem import bad_request

MAX_CONNECTIONS = 1024
"""With MAX_HEAD_BYTES for each, and what uvicorn keeps of one, a fraction of the unit's memory."""
MAX_HEAD_BYTES = 16 << 10
MAX_PIPELINED = 32
"""Requests that one connection may send ahead of the answer that it waits for."""
_MAX_AHEAD_BYTES = 512 << 10  # their bodies; what is read at once may be half of it
_TRANSPORT = "edge.transport"


class Connection(HttpToolsProtocol):
    """Closed when a request's head does not come in time, or is too large.

    What uvicorn leaves open is closed here: it tells only the newest of pipelined requests that
    the client has left, answers HTTP/1.0 in chunks, and loses the body of a request that offers
    to switch to HTTP/2 (curl --http2, Java's HttpClient by default).
    """

    head_timeout_s: ClassVar[float]
    idle: "ClassVar[dict[Connection, None]]"  # without a whole head, by how long
    _head_watch: "Stall | None" = None
    _head_bytes = 0
    _in_head = False
    _running: RequestResponseCycle | None = None
    _data = b""  # being read now
    _offers_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            # Whoever has asked nothing for longest makes room, or the newcomer goes: connections
            # that somebody opens and leaves alone shut nobody out.
            longest = next(iter(self.idle), self)
            longest.transport.abort()
            if longest is self:
                return
            del self.idle[longest]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        if self._head_watch is not None:
            self._head_watch.cancel()
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._running, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > _MAX_AHEAD_BYTES:
            self.transport.abort()
        elif self.pipeline:  # uvicorn pauses reading here, and would not see the client leave
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests ahead of the answer")  # see send_400_response
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.scope["state"][_TRANSPORT] = self.transport

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.idle.pop(self, None)
        # A CONNECT is one by its method; uvicorn refuses it.
        self._offers_upgrade = (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        )
        if self._offers_upgrade:
            return
        super().on_headers_complete()
        if self.scope["http_version"] != "1.1":
            self.cycle.__class__ = UnframedCycle
            self.cycle.chunked_encoding = False

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Read the request once more, without its offer: the parser ends it after the head."""
        stopped = sys.exc_info()[1]
        assert isinstance(stopped, httptools.HttpParserUpgrade)
        rest = self._data[stopped.args[0] :]
        version = self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        head += [b"%b: %b" % (n, v) for n, v in self.headers if n != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        now = self._running
        if now is not None and now.response_started and not now.response_complete:
            self.transport.close()  # it would be read as a part of that answer
            return
        problem = bad_request("this is not a request of HTTP/1.1 that can be read")
        body = problem.body()
        head = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
        head += [b"%b: %b" % pair for pair in problem.headers()]
        head.append(b"content-length: %d" % len(body))
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def shutdown(self) -> None:
        if self.pipeline:  # not begun: for the client to send again
            assert self._running is not None
            self.pipeline.clear()
            self.cycle = self._running
        super().shutdown()

    def _await_head(self) -> None:
        self.idle.pop(self, None)
        self.idle[self] = None
        if self._head_watch is not None:
            self._head_watch.cancel()
        self._head_watch = Stall(self.transport, self.head_timeout_s, self._overdue)

    def _overdue(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class UnframedCycle(RequestResponseCycle):
    """An answer to a client of HTTP/1.0: no chunks, the connection's end is the answer's."""

    async def send(self, message: ASGISendEvent) -> None:
        while self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if message["type"] == "http.response.body":  # nothing awaits between this and its use
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Stall:
    """Calls `stuck` once when the peer has taken nothing for `seconds`, until it is cancelled."""

    def __init__(
        self, transport: asyncio.Transport, seconds: float, stuck: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._seconds = seconds
        self._stuck = stuck
        self._left = self._unread()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def cancel(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._unread()
        if 0 < left < self._left:
            self._left = left
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)
        else:
            self._stuck()

    def _unread(self) -> int:
        """Bytes on their way: ours, and the kernel's that the peer's has not taken (tcp(7))."""
        with suppress(OSError, ValueError):  # the socket is closed
            sock = self._transport.get_extra_info("socket")
            queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
            return self._transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
        return 0


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """The transport of a request's connection; None when no Connection brought the request."""
    found: asyncio.Transport | None = scope.get("state", {}).get(_TRANSPORT)
    return found
