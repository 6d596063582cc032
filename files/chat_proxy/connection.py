"""Connections as uvicorn makes them, with bounds that it has no settings for."""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 4096  # with the engine's side far below the unit's LimitNOFILE
_MAX_HEAD_BYTES = 64 << 10
_TRANSPORT = "edge.transport"


class Connection(HttpToolsProtocol):
    """Closed when a request's head does not come in time, or is too large."""

    head_timeout_s: float
    _head_watch: "Stall | None" = None
    _head_bytes = 0
    _in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_watch is not None:
            self._head_watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.scope["state"][_TRANSPORT] = self.transport

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        if self._head_watch is not None:
            self._head_watch.cancel()
        self._head_watch = Stall(self.transport, self.head_timeout_s, self._overdue)

    def _overdue(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


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
