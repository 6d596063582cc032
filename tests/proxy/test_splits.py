"""Reads that cut a character, an escape or a line anywhere: what comes out is whole and exact.

One stream carries the same event many times, the n-th time cut at its byte n: the engine waits
until the proxy has read the first part before it sends the second.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from chat_proxy.sse import Parser

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, chunk_event, last_events, text_event
from tests.proxy.wire import Wire, request

FAMILY, FLAG = "👩‍👩‍👧‍👦🏽", "🇨🇳"
TEXT = f'é你好，{FAMILY}{FLAG}\u2028\x85\x0b`if a<b:\n\tprint("\\n")`\r\n'
"""Line ends of Unicode that are none of a stream's; code; line ends that the JSON escapes."""

EVENT = text_event(TEXT)
ASK = request("/v1/chat/completions", {"messages": [], "stream": True})
DONE = b"data: [DONE]\n\n"


def escaped(text: str) -> bytes:
    r"""The event with everything beyond ASCII as \u escapes, emoji as surrogate pairs."""
    choices = [{"index": 0, "delta": {"content": text}}]
    return b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"


def in_lines(event: bytes) -> bytes:
    """The event with other fields, comments, and its data in several lines."""
    data = event.removeprefix(b"data: ").strip()
    at = data.index(b",") + 1
    fields = [b": a comment", b"id: 7", b"retry: 10", b"event: chunk", b"unknown", b"data"]
    return b"\n".join([*fields, b"data:" + data[:at], b"data: " + data[at:], b"", b"", b""])


EVENTS = {
    "bytes": EVENT,
    "escapes": escaped(FAMILY + FLAG + "你\n"),
    "CRLF": EVENT.replace(b"\n", b"\r\n"),
    "CR": EVENT.replace(b"\n", b"\r"),
    "lines": in_lines(text_event(FLAG)),
    "lines with CRLF": in_lines(text_event(FLAG)).replace(b"\n", b"\r\n"),
    "lines with CR": in_lines(text_event(FLAG)).replace(b"\n", b"\r"),
}
TEXTS = {"escapes": FAMILY + FLAG + "你\n"} | {
    name: FLAG for name in EVENTS if name.startswith("lines")
}


def in_parts(turn: Turn, parts: Iterator[bytes], kind: str = "text/event-stream") -> None:
    """Send each part when the proxy has read the one before."""
    turn.begin(kind)
    for part in parts:
        turn.part(part)
        turn.wait_read()
    turn.end()


def cut_everywhere(event: bytes, last: bytes) -> Iterator[bytes]:
    rest = b""
    for at in range(1, len(event)):
        yield rest + event[:at]
        rest = event[at:]
    yield rest + last


@pytest.mark.parametrize("name", EVENTS)
def test_chat_is_exact_at_every_cut(engine: ScriptedEngine, proxy: Proxy, name: str) -> None:
    event = EVENTS[name]
    engine.script = lambda turn: in_parts(turn, cut_everywhere(event, last_events()))
    *texts, last = proxy.chat().events()
    assert [one["text"] for one in texts] == [TEXTS.get(name, TEXT)] * (len(event) - 1)
    assert last["done"]


@pytest.mark.parametrize("name", EVENTS)
def test_v1_is_the_same_bytes_at_every_cut(engine: ScriptedEngine, proxy: Proxy, name: str) -> None:
    event = EVENTS[name]
    parts = list(cut_everywhere(event, DONE))
    engine.script = lambda turn: in_parts(turn, iter(parts))
    with Wire(proxy) as wire:
        reply = wire.send(ASK).reply()
    proxy.sent += 1
    assert reply.body == event * (len(event) - 1) + DONE
    assert reply.parts == parts  # it waits for no character's, line's or event's end


def test_every_byte_alone(engine: ScriptedEngine, proxy: Proxy) -> None:
    whole = b":\n\n" + EVENT + EVENTS["escapes"] + EVENTS["lines with CRLF"] + last_events()
    engine.script = lambda turn: in_parts(turn, (bytes([byte]) for byte in whole))
    assert proxy.chat().text() == TEXT + TEXTS["escapes"] + FLAG
    with Wire(proxy) as wire:
        assert wire.send(ASK).reply().body == whole
    proxy.sent += 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_cuts_in_a_byte_order_mark(engine: ScriptedEngine, proxy: Proxy, end: bytes) -> None:
    whole = b"\xef\xbb\xbf" + (text_event(FLAG) + last_events()).replace(b"\n", end)
    for at in range(1, 6):
        engine.script = lambda turn, at=at: in_parts(turn, iter((whole[:at], whole[at:])))
        assert proxy.chat().text() == FLAG
        assert proxy.post("/v1/completions", {"stream": True}).read() == whole


def test_v1_does_not_care_what_the_bytes_mean(engine: ScriptedEngine, proxy: Proxy) -> None:
    odd = b'data: \xff\xfe \xed\xa0\xbd {"a" :  1}\r\rdata:no space\n\r\n\0id: 4\ndata\n\n:\n\n'
    parts = list(cut_everywhere(odd, DONE))
    engine.script = lambda turn: in_parts(turn, iter(parts), "text/event-stream; charset=x")
    with Wire(proxy) as wire:
        reply = wire.send(ASK).reply()
    assert reply.parts == parts
    assert reply.headers["content-type"] == "text/event-stream; charset=x"
    assert reply.headers["x-accel-buffering"] == "no"
    proxy.sent += 1


def test_http_chunks_cut_anywhere(engine: ScriptedEngine, proxy: Proxy) -> None:
    """The engine's own framing comes in pieces, too: sizes, their line ends, the last chunk."""
    event = text_event(FLAG)
    framed = b"".join(b"%x\r\n%b\r\n" % (1, event[n : n + 1]) for n in range(len(event)))
    last = last_events()
    framed += b"%X;x=y\r\n%b\r\n0\r\n\r\n" % (len(last), last)

    def script(turn: Turn) -> None:
        turn.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        turn.raw(b"Transfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(framed), 4):
            turn.raw(framed[at : at + 4])
            turn.wait_read()

    engine.script = script
    assert proxy.chat().text() == FLAG
    with Wire(proxy) as wire:
        assert wire.send(ASK).reply().body == event + last
    proxy.sent += 1


def test_many_streams_cut_at_once_do_not_mix(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=16)
    expected = {f"{n}": f"{n}{FAMILY}{FLAG}{'你好'[n % 2]}" * 3 for n in range(16)}

    def script(turn: Turn) -> None:
        number = turn.json["messages"][0]["content"]
        whole = text_event(expected[number])
        size = 1 + int(number) % 5
        pieces = (whole[at : at + size] for at in range(0, len(whole), size))
        in_parts(turn, (*pieces, last_events()).__iter__())

    engine.script = script
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda n: proxy.chat(n).text(), expected)) == list(expected.values())


def test_the_text_of_many_events_in_one_read(engine: ScriptedEngine, proxy: Proxy) -> None:
    """And one that is larger than a read."""
    words = [f"{n}{FLAG}" for n in range(500)] + ["你" * 300_000]
    engine.script = lambda turn: turn.stream(
        chunk_event(choices=[]) + b"".join(map(text_event, words)) + last_events()
    )
    *texts, last = proxy.chat().events()
    assert [one["text"] for one in texts] == words
    assert last["done"]


def test_these_events_are_what_they_seem() -> None:
    for name, event in EVENTS.items():
        [found] = Parser().feed(event + b"\n")
        delta = json.loads(found.data)["choices"][0]["delta"]
        assert delta["content"] == TEXTS.get(name, TEXT), name
    assert rb"\ud83d\udc69\u200d" in EVENTS["escapes"]
