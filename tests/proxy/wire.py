"""A client on a bare socket: it sends any bytes, and reads answers as HTTP/1.1 frames them."""

import io
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.proxy.proxy_process import WAIT_S, Proxy

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"prompt": "hi"}'
CHUNKED = b"f\r\n" + BODY[:15] + b"\r\n1\r\n}\r\n0\r\n\r\n"
"""BODY, in chunks."""


def head(*lines: str) -> bytes:
    """A request without its body."""
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def request(
    path: str, body: Any, *headers: str, version: str = "1.1", host: str = "Host: x"
) -> bytes:
    """A POST with its length."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", host, f"Content-Length: {len(raw)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


@dataclass
class Reply:
    """One answer; `parts` is its body as it was cut into chunks."""

    status: int
    version: str
    headers: dict[str, str]
    parts: list[bytes] = field(default_factory=list)
    whole: bool = True
    """Whether its end came: the last chunk, or as many bytes as were announced."""

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The error that it tells, as a body or as its last event."""
        body = self.body
        if self.headers["content-type"].startswith("text/event-stream"):
            last = body.rstrip(b"\n").split(b"\n\n")[-1]
            assert last.startswith(b"event: error\ndata: "), body
            body = last.split(b"data: ", 1)[1]
        found: dict[str, Any] = json.loads(body)["error"]
        assert found["message"]
        assert "\n" not in found["message"]
        return found


class Wire:
    """A connection to the proxy."""

    def __init__(self, proxy: Proxy, *, receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:  # and segments as on a network: the kernel tells of small progress
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(("127.0.0.1", proxy.port))
        self._reader = self.sock.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, data: bytes) -> "Wire":
        self.sock.sendall(data)
        return self

    def head(self) -> Reply:
        """Status and headers of the next answer."""
        version, status, _ = self._reader.readline().decode().split(" ", 2)
        headers: dict[str, str] = {}
        while line := self._reader.readline().decode().strip():
            name, _, value = line.partition(":")
            assert name.lower() not in headers, line
            headers[name.lower()] = value.strip()
        return Reply(int(status), version, headers)

    def part(self) -> bytes:
        """The next chunk, b"" for the last.

        Raises:
            EOFError: the connection ended before it.
        """
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(line)
        part = self._reader.read(int(line, 16))
        assert self._reader.read(2) == b"\r\n"
        return part

    def reply(self) -> Reply:
        """The next answer to its end, or to the connection's."""
        found = self.head()
        if found.status == 100:
            return found
        if found.headers.get("transfer-encoding") == "chunked":
            try:
                while part := self.part():
                    found.parts.append(part)
            except (EOFError, ConnectionResetError):
                found.whole = False
        elif (length := found.headers.get("content-length")) is not None:
            found.parts.append(self._reader.read(int(length)))
            found.whole = len(found.body) == int(length)
        else:
            found.parts.append(self._reader.read())
        return found

    def slow_body(self, seconds: float) -> bytes:
        """The body of an answer in chunks, little of it for that long, then all."""
        taken = bytearray()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            taken += self._reader.read1(4096)
            time.sleep(0.01)
        while not taken.endswith(b"\r\n0\r\n\r\n"):
            more = self._reader.read1(1 << 20)
            assert more, "the answer has no end"
            taken += more
        chunks = io.BytesIO(taken)
        body = bytearray()
        while size := int(chunks.readline(), 16):
            body += chunks.read(size)
            chunks.readline()
        return bytes(body)

    def rest(self) -> bytes:
        """All that still comes, to the connection's end; raises TimeoutError while it is open."""
        try:
            return self._reader.read()
        except ConnectionResetError:
            return b""

    def ended(self) -> bool:
        """Whether nothing more comes but the end; raises TimeoutError while it is open."""
        return self.rest() == b""

    def half_close(self) -> None:
        """Say that nothing more will be sent; go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave as a killed machine's client does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._reader.close()
        self.sock.close()


def done(reply: Reply) -> bool:
    """Whether it is a whole stream of /chat with its last event."""
    return reply.whole and b'"done": true' in reply.parts[-1]
