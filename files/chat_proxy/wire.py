"""HTTP/1.1 towards the engine: one request on one connection, and no more than a relay needs."""

import asyncio
from collections.abc import Mapping

import httptools

_MAX_HEAD_BYTES = 64 << 10
_HIGH = 64 << 10  # bytes of the body that may wait here before the engine is held up


class Broken(ConnectionError):  # noqa: N818  (says what happened)
    """The engine ended the connection too early, or does not speak HTTP."""


class Call(asyncio.Protocol):
    """A request under way and its response as it comes; closing it is what cancels it."""

    def __init__(self) -> None:
        self.status = 0
        self.content_type = "application/json"
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._head_bytes = 0
        self._begun = False  # status and headers are there
        self._ends_by_close = True
        self._complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP
        """Called by the event loop."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._parser.feed_data(data)
            if not self._begun:
                self._head_bytes += len(data)
                if self._head_bytes > _MAX_HEAD_BYTES:
                    raise Broken("its headers have no end")
        except (httptools.HttpParserError, Broken) as err:
            self._error = err if isinstance(err, Broken) else Broken(f"it is no HTTP: {err}")
            self._transport.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        if exc is None and self._begun and self._ends_by_close:
            self._complete = True
        if not self._complete and self._error is None:
            self._error = exc or Broken("it ended the connection too early")
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        name = name.lower()
        if name == b"content-type":
            self.content_type = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._ends_by_close = False

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()
        self._begun = self.status >= 200  # else another head follows

    def on_body(self, part: bytes) -> None:
        """Called by the parser."""
        self._body += part
        if len(self._body) > _HIGH:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._complete = self._begun

    async def head(self) -> None:
        """Wait for status and headers. Raises ConnectionError."""
        while not self._begun:
            await self._more()

    async def read(self) -> bytes:
        """What has come of the body since; b"" at its end. Raises ConnectionError."""
        while not self._body:
            if self._complete:
                return b""
            await self._more()
        data = bytes(self._body)
        self._body.clear()
        if len(data) > _HIGH and not self._complete and self._error is None:
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Drop the connection, whatever is still to come."""
        self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def call(
    host: str, port: int, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> Call:
    """Send a request on a connection of its own; waits as long as the kernel tries to connect.

    Raises:
        OSError: nobody accepts the connection.
    """
    transport, made = await asyncio.get_running_loop().create_connection(Call, host, port)
    name = f"[{host}]" if ":" in host else host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {name}:{port}", "Connection: close"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return made
