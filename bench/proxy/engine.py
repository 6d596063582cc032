"""An engine that says a given text at a given speed: `python -m bench.proxy.engine`.

It speaks llama-server's streams, /v1/chat/completions and /completion, as b11312 writes them: the
head and the first chunk in two writes, the role and the first token in one chunk, each later token
in one of its own. One thread, epoll and system calls, so that it costs next to nothing: each stamp
is taken right before the write that carries it.

It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import select
import socket
import sys
import time
from dataclasses import dataclass

from bench.proxy import script

_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_CREATED = 1_800_000_000
_COMMON = {
    "created": _CREATED,
    "id": "chatcmpl-" + 32 * "x",
    "model": "bench",
    "system_fingerprint": "b11312-0c1e57098",
    "object": "chat.completion.chunk",
}
_TEXT = "@TEXT@"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_MAX_REQUEST = _BUFFER = 1 << 20


def _event(value: object) -> bytes:
    return (
        b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


def _delta(delta: dict[str, object], finish: str | None = None) -> bytes:
    return _event({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **_COMMON})


@dataclass(frozen=True)
class Dialect:
    """How one endpoint writes its stream."""

    first: bytes
    """Goes before the first token, in its chunk."""
    token: bytes
    """One event with _TEXT where its text stands."""
    last: bytes
    """After the last token; `@N@` is their number."""


_USAGE = {"completion_tokens": "@N@", "prompt_tokens": 40, "total_tokens": 140}
_TIMINGS = {
    "cache_n": 0,
    "prompt_n": 40,
    "prompt_ms": 1.0,
    "predicted_n": "@N@",
    "predicted_ms": 5000.0,
    "predicted_per_second": 20.0,
}
DIALECTS = {
    b"/v1/chat/completions": Dialect(
        first=_delta({"role": "assistant", "content": None}),
        token=_delta({"content": _TEXT}),
        last=_delta({}, "stop")
        + _event({"choices": [], **_COMMON, "usage": _USAGE, "timings": _TIMINGS})
        + b"data: [DONE]\n\n",
    ),
    b"/completion": Dialect(
        first=b"",
        token=_event(
            {"index": 0, "content": _TEXT, "tokens": [1], "stop": False, "id_slot": 0}
            | {"tokens_predicted": 1, "tokens_evaluated": 40}
        ),
        last=_event(
            {"index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": True, "model": "bench"}
            | {"tokens_predicted": "@N@", "stop_type": "eos", "timings": _TIMINGS}
        ),
    ),
}


def _pieces(dialect: Dialect) -> list[tuple[bytes, bytes]]:
    """What stands before and after the stamps of a token, for each of script.WORDS."""
    before, after = dialect.token.split(_TEXT.encode())
    return [(before, script.word_json(n) + after) for n in range(len(script.WORDS))]


_PIECES = {dialect.token: _pieces(dialect) for dialect in DIALECTS.values()}


@dataclass
class Stream:
    """One answer under way."""

    dialect: Dialect
    pieces: list[tuple[bytes, bytes]]
    stream: int
    tokens: int
    received: int
    said: int = 0
    begun: int = 0


class Connection:
    """One client; requests on it come one after another."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.answer: Stream | None = None
        self.keep = True

    def request(self) -> tuple[bytes, bytes, bytes] | None:
        """(path, head, body) once a request is whole."""
        head, found, body = self.inbox.partition(b"\r\n\r\n")
        if not found:
            return None
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(body) < size:
            return None
        self.inbox = body[size:]
        return head.split(b" ", 2)[1], head, body[:size]


class Engine:
    """Serves until standard input ends."""

    def __init__(self, tokens_per_s: float, first_token_ms: float) -> None:
        self._gap = int(1e9 / tokens_per_s)
        self._first = int(first_token_ms * 1e6)
        self._conns: dict[int, Connection] = {}
        self._due: list[tuple[int, int, Connection, Stream]] = []  # a heap
        self._count = 0  # equal times are served in their order
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve."""
        poll = select.epoll()
        entry, stdin = self._listener.fileno(), sys.stdin.fileno()
        for fd in (entry, stdin):
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll(self._wait_s()):
                if fd == stdin:
                    return
                if fd == entry:
                    for conn in self._accept():
                        poll.register(conn.sock.fileno(), select.EPOLLIN)
                elif (known := self._conns.get(fd)) is not None:
                    self._read(known)
            self._speak()

    def _wait_s(self) -> float | None:
        if not self._due:
            return None
        return max(0, self._due[0][0] - time.monotonic_ns()) / 1e9

    def _accept(self) -> list[Connection]:
        new: list[Connection] = []
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return new
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            new.append(Connection(sock))
            self._conns[sock.fileno()] = new[-1]

    def _read(self, conn: Connection) -> None:
        try:
            data = conn.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received = time.monotonic_ns()
        conn.inbox += data
        if not data or len(conn.inbox) > _MAX_REQUEST:
            self._drop(conn)
            return
        while conn.answer is None and (request := conn.request()) is not None:
            self._take(conn, *request, received)

    def _take(self, conn: Connection, path: bytes, head: bytes, body: bytes, received: int) -> None:
        conn.keep = b"connection: close" not in head.lower()
        dialect = DIALECTS.get(path)
        if dialect is None:
            known = path in (b"/health", b"/v1/models")
            text = b'{"status":"ok","object":"list","data":[]}' if known else b'{"error":{}}'
            status = b"200 OK" if known else b"404 Not Found"
            self._write(
                conn,
                b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (status, len(text), text),
            )
            self._after_answer(conn)
            return
        try:
            number, tokens = script.asked(body)
        except ValueError:
            self._write(conn, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        conn.answer = Stream(dialect, _PIECES[dialect.token], number, tokens, received)
        self._plan(received + self._first, conn, conn.answer)

    def _plan(self, moment: int, conn: Connection, stream: Stream) -> None:
        self._count += 1
        heapq.heappush(self._due, (moment, self._count, conn, stream))

    def _speak(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic_ns():
            moment, _, conn, stream = heapq.heappop(self._due)
            if conn.answer is not stream:  # its client has left
                continue
            number = stream.said
            before, after = stream.pieces[number % len(stream.pieces)]
            if number == 0:
                stream.begun = moment
                self._write(conn, _HEAD)
                before = stream.dialect.first + before
            stream.said += 1
            last = stream.said == stream.tokens
            if last:
                count = str(stream.tokens).encode()
                after += stream.dialect.last.replace(b'"@N@"', count)
            sent = time.monotonic_ns()
            event = b"%b<%d.%d %d %d>%b" % (
                before, stream.stream, number, sent, stream.received, after,
            )  # fmt: skip
            end = b"0\r\n\r\n" if last else b""
            self._write(conn, b"%x\r\n%b\r\n%b" % (len(event), event, end))
            if last:
                conn.answer = None
                self._after_answer(conn)
            elif conn.answer is stream:
                # from the beginning, so that lateness does not add up
                self._plan(stream.begun + stream.said * self._gap, conn, stream)

    def _after_answer(self, conn: Connection) -> None:
        if not conn.keep:
            self._drop(conn)

    def _write(self, conn: Connection, data: bytes) -> None:
        try:
            conn.sock.send(data)  # a whole answer fits into the socket's buffer
        except OSError:
            self._drop(conn)

    def _drop(self, conn: Connection) -> None:
        conn.answer = None
        self._conns.pop(conn.sock.fileno(), None)
        conn.sock.close()


def main() -> None:
    """Print the port, serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens-per-s", type=float, default=script.TOKENS_PER_S)
    parser.add_argument("--first-token-ms", type=float, default=0.0)
    args = parser.parse_args()
    engine = Engine(args.tokens_per_s, args.first_token_ms)
    print(engine.port, flush=True)
    engine.run()


if __name__ == "__main__":
    main()
