"""POST /chat at the wire: exact text, the engine's request, refusals, and an engine that fails."""

import json
from collections.abc import Callable
from typing import Any

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event


def test_text_goes_out_unescaped_with_counts_and_timings_last(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    engine.script = lambda turn: turn.say("你", "好", "👋")
    answer = proxy.chat()
    assert answer.status == 200
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.header("cache-control") == "no-cache"
    assert answer.header("x-accel-buffering") == "no"
    assert [answer.block() for _ in range(3)] == [
        'data: {"text": "你"}\n',
        'data: {"text": "好"}\n',
        'data: {"text": "👋"}\n',
    ]
    [last] = answer.events()
    timings = last.pop("timings")
    assert last == {
        "done": True,
        "finish_reason": "stop",
        "model": "m",
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        "dropped_messages": 0,
    }
    assert set(timings) == {"queue_s", "first_token_s", "total_s", "tokens_per_s"}
    assert 0 <= timings["queue_s"] <= timings["first_token_s"] <= timings["total_s"]


def test_tokens_are_sent_as_they_come(engine: ScriptedEngine, proxy: Proxy) -> None:
    seen: list[Turn] = []

    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("one"))
        seen.append(turn)
        turn.wait_gone()

    engine.script = script
    answer = proxy.chat()
    assert answer.event() == 'data: {"text": "one"}\n'  # the engine has not sent another byte
    answer.leave()


def test_without_stream_one_json_object(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: turn.say("你", "好")
    answer = proxy.chat(stream=False)
    assert answer.header("content-type") == "application/json; charset=utf-8"
    body = answer.json()
    assert body["text"] == "你好"
    assert body["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 2
    assert "done" not in body


def test_an_answer_without_text(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: turn.stream(text_event(None), last_events(tokens_out=0))
    [last] = proxy.chat().events()
    assert last["done"]
    assert last["usage"]["completion_tokens"] == 0


def test_what_the_engine_is_asked(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(system_prompt="Be kind.", temperature=0.3, max_tokens=99)
    proxy.chat("你好").events()
    asked = engine.turn(0)
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.json == {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "你好"},
        ],
        "max_tokens": 99,
        "temperature": 0.3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    settings = {"temperature": 0, "top_p": 0.5, "seed": 3, "stop": ["x"], "max_tokens": 5}
    proxy.post("/chat", {"messages": turns, "system": "Be brief.", **settings}).events()
    second = engine.turn(1).json
    assert second["messages"] == [{"role": "system", "content": "Be brief."}, *turns]
    assert {name: second[name] for name in settings} == settings
    own = [{"role": "system", "content": "Mine."}, *turns]
    proxy.post("/chat", {"messages": own}).events()
    assert engine.turn(2).json["messages"] == own


BAD: list[tuple[Any, int, str]] = [
    (b"", 400, "Invalid JSON"),
    (b"{", 400, "Invalid JSON"),
    (b"[]", 400, "object"),
    (b"\xff\xfe", 400, "Invalid JSON"),
    (b'{"prompt": "\\ud800"}', 400, "Invalid JSON"),
    (b"[" * 90_000, 400, "Invalid JSON"),
    ({}, 400, "either prompt or messages"),
    ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, 400, "either"),
    ({"prompt": ""}, 400, "prompt: "),
    ({"prompt": 3}, 400, "prompt: "),
    ({"prompt": "a", "temprature": 1}, 400, "temprature: "),
    ({"prompt": "a", "temperature": 9}, 400, "temperature: "),
    (b'{"prompt": "a", "temperature": NaN}', 400, ""),
    ({"prompt": "a", "top_p": 0}, 400, "top_p: "),
    ({"prompt": "a", "seed": -1}, 400, "seed: "),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens: "),
    ({"prompt": "a", "max_tokens": 513}, 400, "above 512"),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens: "),
    ({"prompt": "a", "stop": ["x"] * 17}, 400, "stop"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream: "),
    ({"messages": []}, 400, "messages: "),
    ({"messages": [{"role": "user"}]}, 400, "messages.0.content: "),
    ({"messages": [{"role": "root", "content": "a"}]}, 400, "messages.0.role: "),
    ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "role user"),
    ({"messages": [{"role": "user", "content": "a"}] * 257}, 400, "messages: "),
    (
        {"system": "s", "messages": [{"role": r, "content": "a"} for r in ("system", "user")]},
        400,
        "one system message",
    ),
    (b'{"prompt": "' + b"a" * 98_304 + b'"}', 413, "larger than 98304 bytes"),
]


def test_bad_requests_are_told_what_is_wrong_in_one_line(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    for body, status, says in BAD:
        answer = proxy.post("/chat", body)
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (status, status), body
        assert says in error["message"], body
        assert "\n" not in error["message"]
    assert engine.turns == []
    assert proxy.chat().text() == "Hello there"


def test_a_large_body_without_a_length_is_refused(proxy: Proxy) -> None:
    chunked = b"POST /chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = proxy.get("/healthz")
    answer.read()
    sock = answer._sock
    proxy.sent += 1
    sock.sendall(chunked)
    for _ in range(17):
        sock.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
    assert sock.recv(12) == b"HTTP/1.1 413"


def test_pages_of_other_sites_are_refused(engine: ScriptedEngine, proxy: Proxy) -> None:
    for origin in ("http://evil.example", "http://[", "null", ""):
        foreign = proxy.post("/chat", {"prompt": "a"}, origin=origin)
        assert foreign.status == 403, origin
    own = proxy.post("/chat", {"prompt": "a"}, origin=f"http://127.0.0.1:{proxy.port}")
    assert own.text() == "Hello there"
    assert len(engine.turns) == 1


REFUSALS: list[tuple[int, Any, int, str]] = [
    (400, {"message": "template says\n no"}, 400, "template says no"),
    (
        400,
        {"type": "exceed_context_size_error", "n_prompt_tokens": 6031, "message": "x"},
        400,
        "has 6031 tokens and a slot holds 2048",
    ),
    (500, {"message": "oops"}, 502, "oops"),
    (500, "no object", 502, "no object"),
]


def test_a_refusal_of_the_engine(engine: ScriptedEngine, proxy: Proxy) -> None:
    for status, error, expected, says in REFUSALS:
        body = json.dumps({"error": error}).encode()
        engine.script = lambda turn, status=status, body=body: turn.plain(status, body)
        answer = proxy.chat()
        assert answer.status == expected
        told = answer.json()["error"]
        assert says in told["message"]
        too_long = isinstance(error, dict) and error.get("type") == "exceed_context_size_error"
        assert (told["type"] == "context_length_exceeded") == too_long


def test_time_limits(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    proxy = start_proxy(first_token_timeout_s=0.3, total_timeout_s=0.6)
    engine.script = Turn.wait_gone
    answer = proxy.chat()
    assert answer.status == 504
    assert answer.json()["error"]["type"] == "first_token_timeout"
    assert engine.turn(0).gone.wait(5)

    def slow(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("a"))
        turn.wait_gone()

    engine.script = slow
    text, error = proxy.chat().events()
    assert text == {"text": "a"}
    assert error["error"]["type"] == "total_timeout"
    assert engine.turn(1).gone.wait(5)


def test_the_log_has_one_line_a_request_and_no_secrets(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(engine_key="sesame-engine")
    proxy.post("/chat", {"prompt": "my secret question"}, authorization="Bearer mine").events()
    assert engine.turn(0).headers["authorization"] == "Bearer sesame-engine"
    line = proxy.line(0)
    assert line.keys() == {
        "path",
        "caller",
        "from",
        "status",
        "finish",
        "model",
        "tokens_in",
        "tokens_out",
        "queue_s",
        "first_token_s",
        "total_s",
        "tokens_per_s",
    }
    expected = {
        "path": "/chat",
        "status": "200",
        "finish": "stop",
        "model": "m",
        "tokens_in": "7",
        "tokens_out": "2",
    }
    assert {name: line[name] for name in expected} == expected
    proxy.get("/healthz").read()
    errors = proxy.stop()
    assert len(proxy.lines) == 1
    for secret in ("secret", "sesame", "mine", "Hello"):
        assert secret not in errors + "".join(proxy.lines)


def test_a_wrong_field_is_named_in_plain_words(engine: ScriptedEngine, proxy: Proxy) -> None:
    for body, says in (
        ({"prompt": "x", "maxtokens": 5}, "maxtokens: no such field; there are prompt, messages"),
        ({"messages": []}, "messages: it is empty"),
        ({"prompt": ""}, "prompt: it is empty"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: it is missing"),
    ):
        assert proxy.post("/chat", body).json()["error"]["message"].startswith(says)
