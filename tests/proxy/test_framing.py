"""Where a request ends: what can be read in two ways is refused, and nothing behind it is asked."""

import pytest

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine
from tests.proxy.wire import BODY, CHUNKED, HEALTH, Wire, head

SMUGGLED = {
    "length and chunks": (("Content-Length: 16", "Transfer-Encoding: chunked"), CHUNKED),
    "chunks and length": (("Transfer-Encoding: chunked", "Content-Length: 4"), CHUNKED),
    "two lengths": (("Content-Length: 16", "Content-Length: 4"), BODY),
    "two equal lengths": (("Content-Length: 16", "Content-Length: 16"), BODY),
    "a list of lengths": (("Content-Length: 16, 16",), BODY),
    "a sign": (("Content-Length: +16",), BODY),
    "less than nothing": (("Content-Length: -1",), BODY),
    "a hexadecimal length": (("Content-Length: 0x10",), BODY),
    "a length of two words": (("Content-Length: 1 6",), BODY),
    "an empty length": (("Content-Length: ",), BODY),
    "a length beyond numbers": (("Content-Length: " + "9" * 30,), BODY),
    "a space before the colon": (("Transfer-Encoding : chunked",), CHUNKED),
    "no name": ((": x", "Content-Length: 16"), BODY),
    "identity": (("Transfer-Encoding: identity",), BODY),
    "chunks not last": (("Transfer-Encoding: chunked, gzip",), CHUNKED),
    "chunks twice": (("Transfer-Encoding: chunked, chunked",), CHUNKED),
    "nearly chunked": (("Transfer-Encoding: xchunked",), CHUNKED),
    "a tab in the coding": (("Transfer-Encoding: \x0bchunked",), CHUNKED),
    "a folded header": (("Content-Length: 16", "A: b", " c"), BODY),
    "a lone CR": (("Content-Length: 16", "A: b\rTransfer-Encoding: chunked"), BODY),
    "a NUL": (("Content-Length: 16", "A: \0"), BODY),
}
ONLY_AFTER_THE_HEAD = ("identity", "nearly chunked")  # are they refused: the request has begun
BROKEN_CHUNKS = {
    "no number": b"zz\r\n",
    "a size beyond numbers": b"f" * 40 + b"\r\n",
    "a negative size": b"-1\r\n",
    "longer than said": b"1\r\n" + BODY,
    "lines without CR": CHUNKED.replace(b"\r\n", b"\n"),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_length_that_can_be_read_in_two_ways_is_refused(
    engine: ScriptedEngine, proxy: Proxy, name: str
) -> None:
    headers, body = SMUGGLED[name]
    with Wire(proxy) as wire:
        wire.send(head("POST /chat HTTP/1.1", "Host: x", *headers) + body + HEALTH)
        reply = wire.reply()
        assert (reply.status, reply.error()["code"]) == (400, 400)
        assert reply.headers["connection"] == "close"
        assert wire.ended()  # what follows is not taken for a request
    proxy.sent += name in ONLY_AFTER_THE_HEAD
    assert engine.turns == []


@pytest.mark.parametrize("name", BROKEN_CHUNKS)
def test_chunks_that_are_none(engine: ScriptedEngine, proxy: Proxy, name: str) -> None:
    with Wire(proxy) as wire:
        start = head("POST /chat HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
        reply = wire.send(start + BROKEN_CHUNKS[name] + HEALTH).reply()
        assert (reply.status, reply.error()["code"]) == (400, 400)
        assert wire.ended()
    proxy.sent += 1  # it had begun
    assert engine.turns == []


def test_a_length_that_is_wrong(engine: ScriptedEngine, proxy: Proxy) -> None:
    with Wire(proxy) as wire:  # too short: the rest is no request
        wire.send(head("POST /chat HTTP/1.1", "Host: x", "Content-Length: 12") + BODY)
        assert wire.reply().error()["code"] == 400
        assert wire.ended()
    with Wire(proxy) as wire:  # too long: the client gives up waiting
        wire.send(head("POST /chat HTTP/1.1", "Host: x", "Content-Length: 17") + BODY)
        wire.half_close()
        assert wire.ended()
    proxy.sent += 2
    with Wire(proxy) as wire:
        wire.send(head("POST /chat HTTP/1.1", "Host: x", f"Content-Length: {2**64 - 1}"))
        assert wire.reply().error()["code"] == 413
    proxy.sent += 1
    assert engine.turns == []


NO_REQUEST = [
    b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://y HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/2.5\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: x\n\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a client of TLS
    b"\0" * 100,
]


@pytest.mark.parametrize("sent", NO_REQUEST)
def test_what_is_no_request_is_told_in_json(proxy: Proxy, sent: bytes) -> None:
    with Wire(proxy) as wire:
        reply = wire.send(sent).reply()
        assert (reply.status, reply.error()["type"]) == (400, "invalid_request_error")
        assert wire.ended()
