"""Bodies that nobody should send: each gets an answer that says what is wrong, and costs nothing.

corpus/good are requests to /chat, corpus/wrong are JSON objects that are none, corpus/unreadable
are no JSON objects. /v1 has other fields: what it takes of an object, the engine gets.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn
from tests.proxy.wire import Reply, Wire, request

CORPUS = {
    kind: {
        one.stem: one.read_bytes()
        for one in sorted((Path(__file__).parent / "corpus" / kind).iterdir())
    }
    for kind in ("good", "wrong", "unreadable")
}
V1 = ("/v1/chat/completions", "/v1/completions")
MESSAGE_CHARS = 300  # a part of the input may be in it, but not all of a long one
MEMORY_MIB = 24


def both(turn: Turn) -> None:
    """Streams for /chat, one object for /v1 without a stream."""
    if b'"stream": true' in turn.body and b"include_usage" in turn.body:
        turn.say("ok")
    else:
        turn.plain(200, b'{"choices": []}')


class Asker:
    """One connection for many requests: each answer leaves it usable, or says that it does not."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._wire: Wire | None = None

    def __call__(self, path: str, body: bytes) -> Reply:
        if self._wire is None:
            self._wire = Wire(self.proxy)
        self.proxy.sent += 1
        reply = self._wire.send(request(path, body)).reply()
        assert reply.whole
        if reply.headers.get("connection") == "close":
            assert self._wire.ended()
            self.close()
        if reply.status != 200:
            assert_told(reply)
        return reply

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def assert_told(reply: Reply) -> None:
    assert reply.status in (400, 413), reply
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    error = reply.error()
    assert (error["code"], error["type"]) == (reply.status, "invalid_request_error")
    message = error["message"]
    assert message.isprintable(), message
    assert 10 < len(message) <= MESSAGE_CHARS, message
    for leak in ("Traceback", "pydantic", "http://", "https://", ".py"):
        assert leak not in message


@pytest.fixture
def asked(proxy: Proxy, engine: ScriptedEngine) -> Iterator[Asker]:
    engine.script = both
    one = Asker(proxy)
    before = proxy.memory_mib("VmHWM")
    yield one
    one.close()
    assert proxy.memory_mib("VmHWM") < before + MEMORY_MIB
    # what the engine got, it could read
    assert all(isinstance(turn.json, dict) for turn in engine.turns)
    assert proxy.chat().text() == "ok"


def test_good_ones(asked: Asker) -> None:
    for name, body in CORPUS["good"].items():
        reply = asked("/chat", body)
        assert (reply.status, b'"ok"' in reply.body) == (200, True), name
        for path in V1:
            assert asked(path, body).status in (200, 400), name


def test_wrong_ones(asked: Asker, engine: ScriptedEngine) -> None:
    for name, body in CORPUS["wrong"].items():
        assert asked("/chat", body).status == 400, name
        assert engine.turns == []
    for name, body in CORPUS["wrong"].items():
        for path in V1:
            assert asked(path, body).status in (200, 400), name


def test_unreadable_ones(asked: Asker, engine: ScriptedEngine) -> None:
    for name, body in CORPUS["unreadable"].items():
        for path in ("/chat", *V1):
            expected = 413 if len(body) > 98_304 else 400
            assert asked(path, body).status == expected, (name, path)
    assert engine.turns == []


@pytest.mark.parametrize("name", ["all-fields", "unicode", "escapes"])
def test_each_one_cut_short(asked: Asker, engine: ScriptedEngine, name: str) -> None:
    body = CORPUS["good"][name].rstrip()
    for at in range(len(body)):
        assert asked("/chat", body[:at]).status == 400, at
        assert asked(V1[0], body[:at]).status == 400, at
    assert engine.turns == []


def test_the_error_says_where(asked: Asker) -> None:
    for name, where in {
        "unknown-key": "temprature: ",
        "role-unknown": "messages.0.role: ",
        "temperature-too-high": "temperature: ",
        "max-tokens-too-many": "max_tokens: ",
    }.items():
        assert asked("/chat", CORPUS["wrong"][name]).error()["message"].startswith(where)


FIELDS = ["prompt", "messages", "system", "max_tokens", "temperature", "top_p", "seed", "stop"]
FIELDS += ["stream", "n", "role", "content", "model", "tools", "response_format"]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["user", "system", "assistant", ""])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
turns = st.lists(st.fixed_dictionaries({"role": scalars, "content": scalars}) | values, max_size=4)
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=5) | st.fixed_dictionaries(
    {"messages": turns}, optional=dict.fromkeys(FIELDS[2:9], scalars)
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=4)
        | st.sampled_from([b"{", b"[", b'"', b"\\u", b"\xf0\x9f", b"9" * 30, b"e999", b"\0", b"}"]),
    ),
    min_size=1,
    max_size=4,
)
examples = st.sampled_from([*CORPUS["good"].values(), *CORPUS["wrong"].values()])


def edited(body: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for how, place, data in changes:
        at = int(place * len(body))
        keep = at + (0 if how == "insert" else len(data))
        middle = {"insert": data, "replace": data, "delete": b"", "repeat": body[at:keep] * 50}[how]
        body = body[:at] + middle + body[keep:]
    return body


fuzzed = functools.partial(
    settings,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fuzzed(max_examples=250)
@given(body=objects, path=st.sampled_from(["/chat", *V1]))
def test_objects_of_anything(asked: Asker, body: Any, path: str) -> None:
    assert asked(path, json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@fuzzed(max_examples=250)
@given(body=examples, changes=edits, path=st.sampled_from(["/chat", *V1]))
def test_bodies_with_damage(
    asked: Asker, body: bytes, changes: list[tuple[str, float, bytes]], path: str
) -> None:
    assert asked(path, edited(body, changes))
