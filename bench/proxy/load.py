"""The clients: `python -m bench.proxy.load PORT PATH …` prints what each stream met, as JSON.

Each stream is a connection of its own that is opened when it asks, as a browser's is: a page that
has been open for some seconds has no connection left (uvicorn closes idle ones after five). Its
clock starts before the connection is made. Arrivals are an open loop: nobody waits for an answer
before the next one asks.

One thread, epoll and system calls; what was read is stamped and put aside, and parsed when all is
over, so that the clients' own work delays no stamp.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httptools

from bench.proxy import script

_READ = 1 << 16


@dataclass
class Client:
    """One stream, as its client saw it; times are CLOCK_MONOTONIC in nanoseconds."""

    number: int
    due: int
    asked: int = 0
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    broken: str = ""
    """What the system call that failed said."""


@dataclass
class Delays:
    """What one run of the clients met: milliseconds that the system added, and errors by kind."""

    first_ms: list[float] = field(default_factory=list)
    """For each stream: (first text read - asked) less the engine's own (sent - received)."""
    token_ms: list[float] = field(default_factory=list)
    """For each token after a stream's first: read by the client - sent by the engine."""
    tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    last_s: float = 0.0
    """From the first request to the last byte."""


def run(
    port: int,
    path: str,
    *,
    streams: int,
    spread_s: float,
    tokens: int,
    limit_s: float,
) -> Delays:
    """Ask for `streams` streams over `spread_s` seconds (0: all at the same instant).

    Streams that are not over `limit_s` after the last has asked are errors. The path decides what
    is sent and how the answer is read: /chat, or an OpenAI-compatible endpoint.
    """
    begin = time.monotonic_ns() + 50_000_000
    gap = int(spread_s * 1e9 / streams)
    clients = [Client(number, begin + number * gap) for number in range(streams)]
    _ask_all(clients, [_request(path, one.number, tokens) for one in clients], port, limit_s)
    delays = Delays()
    errors: Counter[str] = Counter()
    for one in clients:
        try:
            _judge(one, path, tokens, delays)
        except script.Wrong as wrong:
            errors[str(wrong)] += 1
    delays.errors = dict(errors.most_common(20))
    ends = [one.reads[-1][0] for one in clients if one.reads]
    delays.last_s = (max(ends) - begin) / 1e9 if ends else 0.0
    return delays


def _request(path: str, number: int, tokens: int) -> bytes:
    question = script.prompt(number, tokens)
    body: dict[str, object] = {"prompt": question}
    if path != "/chat":
        body = {
            "model": "bench",
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def _ask_all(clients: list[Client], requests: list[bytes], port: int, limit_s: float) -> None:
    """Open, ask and read; fills in the clients' times and reads."""
    poll = select.epoll()
    socks: dict[int, tuple[socket.socket, Client]] = {}
    end = clients[-1].due + int(limit_s * 1e9)
    waiting = 0  # index of the next to ask
    while (waiting < len(clients) or socks) and (now := time.monotonic_ns()) < end:
        if waiting < len(clients) and clients[waiting].due <= now:
            one = clients[waiting]
            # One a turn: answers to the first of a burst are read while the last still ask.
            sock = _ask(one, requests[waiting], port)
            waiting += 1
            if sock is not None:
                poll.register(sock.fileno(), select.EPOLLIN)
                socks[sock.fileno()] = (sock, one)
        if waiting < len(clients):
            upto = clients[waiting].due
        elif socks:
            upto = end
        else:
            break  # the last could not ask
        for fd, _ in poll.poll(max(0, upto - time.monotonic_ns()) / 1e9):
            sock, one = socks[fd]
            try:
                data = sock.recv(_READ)
            except OSError as err:
                data, one.broken = b"", err.strerror or "reset"
            if data:
                one.reads.append((time.monotonic_ns(), data))
            if not data or _is_over(data):
                del socks[fd]
                sock.close()
    for sock, one in socks.values():
        one.broken = f"not over after {limit_s:g} s"
        sock.close()


def _ask(one: Client, request: bytes, port: int) -> socket.socket | None:
    one.asked = time.monotonic_ns()
    sock = socket.socket()
    try:
        sock.connect(("127.0.0.1", port))  # at once, on loopback
        sock.sendall(request)
    except OSError as err:
        one.broken = err.strerror or "refused"
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def _is_over(data: bytes) -> bool:
    """Whether the answer ends here; an answer of another kind ends with its connection."""
    return data.endswith(b"\r\n0\r\n\r\n") or data == b"0\r\n\r\n"


class _Body:
    """httptools' callbacks: the body's bytes since the last look."""

    def __init__(self) -> None:
        self.data = b""
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_message_complete(self) -> None:
        self.complete = True


def _judge(one: Client, path: str, tokens: int, delays: Delays) -> None:
    """Read what the client got, and add its delays.

    Raises:
        script.Wrong: the stream is not complete and exact; its delays do not count.
    """
    body, reader = _Body(), script.Reader(one.number)
    parser = httptools.HttpResponseParser(body)
    rest = b""
    for moment, data in one.reads:
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as err:
            raise script.Wrong(f"not HTTP: {err}") from None
        if parser.get_status_code() not in (0, 200):
            raise script.Wrong(f"status {parser.get_status_code()}")
        *events, rest = (rest + body.data).replace(b"\r\n", b"\n").split(b"\n\n")
        body.data = b""
        for event in events:
            reader.feed(_text(event, path), moment)
    if one.broken:
        raise script.Wrong(one.broken)
    reader.end(tokens)
    if not body.complete:
        raise script.Wrong("all tokens, but no end of the answer")
    sent, received, arrived = reader.tokens[0]
    delays.first_ms.append(((arrived - one.asked) - (sent - received)) / 1e6)
    delays.token_ms += [(arrived - sent) / 1e6 for sent, _, arrived in reader.tokens[1:]]
    delays.tokens += tokens


def _text(event: bytes, path: str) -> str:
    """The text in one event; "" where it has none (a comment, the role, the usage, the end)."""
    name, _, data = event.partition(b": ")
    if name in (b"", b":") or data == b"[DONE]":
        return ""
    if name != b"data":
        raise script.Wrong(f"an event {event[:80]!r}")
    value = json.loads(data)
    if "error" in value:
        raise script.Wrong(f"an error: {str(value['error'])[:80]}")
    if path == "/chat":
        return value.get("text") or ""
    return "".join(choice["delta"].get("content") or "" for choice in value["choices"])


def main() -> None:
    """Run as a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--spread-s", type=float, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    json.dump(vars(run(**vars(parser.parse_args()))), sys.stdout)


if __name__ == "__main__":
    main()
