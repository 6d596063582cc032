"""An engine that speaks llama-server's wire and does exactly what a test tells it.

It is a plain socket server, a thread a connection, so that a test decides which bytes go out when,
and sees when the proxy hangs up.
"""

import fcntl
import json
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 10.0


def chunk_event(**fields: Any) -> bytes:
    """One event of a streamed completion, as llama-server writes it."""
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", **fields}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def text_event(text: str | None) -> bytes:
    delta = {"content": text} if text is not None else {"role": "assistant", "content": None}
    return chunk_event(choices=[{"finish_reason": None, "index": 0, "delta": delta}])


def last_events(tokens_in: int = 7, tokens_out: int = 3, finish: str = "stop") -> bytes:
    usage = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    return (
        chunk_event(choices=[{"finish_reason": finish, "index": 0, "delta": {}}])
        + chunk_event(choices=[], usage=usage)
        + b"data: [DONE]\n\n"
    )


@dataclass
class Turn:
    """One request that the engine got; the script answers through it."""

    engine: "ScriptedEngine"
    sock: socket.socket
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def begin(self, kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.raw(head.encode())

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def part(self, data: bytes) -> None:
        """One part of the body, in one chunk of HTTP."""
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def stream(self, *parts: bytes) -> None:
        self.begin()
        for one in parts:
            self.part(one)
        self.end()

    def plain(
        self, status: int, body: bytes, kind: str = "application/json; charset=utf-8"
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.raw(head.encode() + body)

    def say(self, *texts: str) -> None:
        """A whole streamed answer."""
        self.stream(text_event(None), *map(text_event, texts), last_events(tokens_out=len(texts)))

    def die(self) -> None:
        """Reset the connection, as a killed process does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait_gone(self) -> None:
        """Block until the proxy closes the connection."""
        if select.select([self.sock], [], [], WAIT_S)[0]:
            try:
                closed = self.sock.recv(1) == b""
            except OSError:
                closed = True
            if closed:
                self.gone.set()

    def wait_read(self) -> None:
        """Block until the proxy has read all that was sent, as the kernel knows."""
        deadline = time.monotonic() + WAIT_S
        while unread_by_peer(self.sock) or not_acknowledged(self.sock):
            assert time.monotonic() < deadline, "the proxy does not read"
            time.sleep(0.0002)


def not_acknowledged(sock: socket.socket) -> int:
    """Bytes that are still on their way to the other end (SIOCOUTQ of tcp(7))."""
    queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(queued, sys.byteorder)


def unread_by_peer(sock: socket.socket) -> int:
    """Bytes in the receive queue of the other end of a loopback connection (sock_diag(7))."""
    (host, ours), (_, theirs) = sock.getsockname(), sock.getpeername()
    address = socket.inet_aton(host) + bytes(12)
    ends = (
        struct.pack("!HH", theirs, ours)
        + address
        + address
        + struct.pack("=III", 0, *[~0 % 2**32] * 2)
    )
    question = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ~0 % 2**32) + ends
    head = struct.pack("=IHHII", 16 + len(question), 20, 1, 0, 0)  # SOCK_DIAG_BY_FAMILY
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:  # NETLINK_SOCK_DIAG
        diag.send(head + question)
        answer = diag.recv(4096)
    kind, after_ends = struct.unpack_from("=H", answer, 4)[0], 16 + 4 + len(ends)
    if kind != 20:
        raise ConnectionError("the connection is gone")
    queued: int = struct.unpack_from("=I", answer, after_ends + 4)[0]
    return queued


Script = Callable[[Turn], None]


class ScriptedEngine:
    """Listens on one port over its whole life; `stop` and `start` are a restart."""

    def __init__(self) -> None:
        self.script: Script
        self.loading: bool
        self.most_at_once: int  # connections
        self.turns: list[Turn]
        self._changed = threading.Condition()
        self._conns: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.reset()

    def reset(self) -> None:
        """As new, on the same port."""
        if self._listener is None:
            self.start()
        self.script = lambda turn: turn.say("Hello", " there")
        self.loading = False
        self.most_at_once = 0
        self.turns = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def stop(self) -> None:
        """Die: nobody is answered any more, connections are reset."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        with self._changed:
            conns, self._conns = self._conns, set()
        for conn in conns:
            with suppress(OSError):  # it has just ended by itself
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                conn.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._listener is not None:
            self.stop()

    def turn(self, number: int) -> Turn:
        """The request number `number` (from 0), once it has come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.turns) > number, WAIT_S), (
                f"the engine got {len(self.turns)} requests, not {number + 1}"
            )
            return self.turns[number]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=[conn], daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        with self._changed:
            self._conns.add(conn)
            self.most_at_once = max(self.most_at_once, len(self._conns))
        turn = None
        try:
            turn = self._read(conn)
            if turn is None:
                return
            if self.loading:
                turn.plain(503, b'{"error":{"code":503,"message":"Loading model"}}')
            elif turn.path == "/health":
                turn.plain(200, b'{"status":"ok"}')
            else:
                with self._changed:
                    self.turns.append(turn)
                    self._changed.notify_all()
                self.script(turn)
        except OSError:  # the other side has gone
            if turn is not None:
                turn.gone.set()
        finally:
            with self._changed:
                self._conns.discard(conn)
            conn.close()

    def _read(self, conn: socket.socket) -> Turn | None:
        reader = conn.makefile("rb")
        try:
            start = reader.readline().split()
            if not start:
                return None
            headers = {}
            while line := reader.readline().strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = reader.read(int(headers.get("content-length", 0)))
            return Turn(self, conn, start[0].decode(), start[1].decode(), headers, body)
        finally:
            reader.close()
