"""The OpenAI-compatible endpoints: not one byte is changed."""

import json
import threading
from collections.abc import Callable

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event


def test_who_hangs_up_at_the_last_event_has_not_left(engine: ScriptedEngine, proxy: Proxy) -> None:
    hung_up = threading.Event()

    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(last_events())
        assert hung_up.wait(10)
        turn.end()

    engine.script = script
    answer = proxy.post("/v1/chat/completions", {"stream": True})
    while answer.block() != "data: [DONE]\n":
        pass
    answer.leave()
    assert proxy.get("/healthz").status == 200  # by now the proxy knows that it hung up
    hung_up.set()
    assert (proxy.line(0)["status"], proxy.line(0)["tokens_out"]) == ("200", "3")


def test_requests_and_plain_answers_come_through_byte_for_byte(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], tmp_path: object
) -> None:
    proxy = start_proxy()
    body = b'{ "prompt":"\\u4f60 \xe4\xbd\xa0",\n "n_predict": 1e2}'
    usage = b'"usage":{"prompt_tokens":4,"completion_tokens":9}'
    reply = b'{"model": "m 1", "text":  "\\u4f60\xe4\xbd\xa0", ' + usage + b"}\n"
    engine.script = lambda turn: turn.plain(200, reply, "application/json; charset=utf-8")
    answer = proxy.post("/v1/completions", body)
    assert answer.read() == reply
    assert answer.header("content-type") == "application/json; charset=utf-8"
    asked = engine.turn(0)
    assert (asked.method, asked.path, asked.body) == ("POST", "/v1/completions", body)
    line = proxy.line(0)
    assert (line["model"], line["tokens_in"], line["tokens_out"]) == ("m_1", "4", "9")


def test_refusals_of_the_engine_come_through(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: turn.plain(418, b"short and stout", "text/x-pot")
    for body in (b"{}", b'{"stream": true}', b'{"user": "\\ud83d\\udc4b"}'):
        answer = proxy.post("/v1/chat/completions", body)
        assert (answer.status, answer.read()) == (418, b"short and stout")
        assert answer.header("content-type") == "text/x-pot"


def test_what_the_engine_could_not_read_does_not_reach_it(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    """It would write the client's text into its journal."""
    bad = [b"", b"secret", b'{"a": secret}', b'["secret"]', b'"secret"', b"[" * 50_000]
    bad += ['{"a": "secret"}'.encode("utf-16"), b'\xef\xbb\xbf{"a": "secret"}']
    bad += [b'{"secret": "\xff"}', b'{"secret": "\\ud800"}', b'{"secret": "a\nb"}']
    bad += [b'{"secret": NaN}', b'{"secret": 1e999}', b'{"secret": -Infinity}']
    bad += [b'{"secret": ' + b"9" * 400 + b"}", b'{"a": "secret"} {}']
    for body in bad:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = proxy.post(path, body)
            said = answer.read()
            assert answer.status == 400, body
            assert json.loads(said)["error"]["message"] == "the body must be a JSON object in UTF-8"
    assert engine.turns == []


def test_the_models_need_no_slot(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = lambda turn: (turn.begin(), turn.part(text_event("a")), turn.wait_gone())[0]
    busy = proxy.chat()
    assert busy.block()
    engine.script = lambda turn: turn.plain(200, b'{"data": [ ]}')
    models = proxy.get("/v1/models")
    assert (models.status, models.read()) == (200, b'{"data": [ ]}')
    busy.leave()


def test_a_plain_answer_that_breaks_is_502(engine: ScriptedEngine, proxy: Proxy) -> None:
    def script(turn: Turn) -> None:
        turn.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        turn.wait_read()
        turn.die()

    engine.script = script
    assert proxy.post("/v1/chat/completions", {}).status == 502


def test_counts_for_the_log_come_from_the_engines_timings(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    timed = b'data: {"choices":[],"timings":{"cache_n":5,"prompt_n":3,"predicted_n":8}}\n\n'
    engine.script = lambda turn: turn.stream(text_event("a"), timed, b"data: [DONE]\n\n")
    proxy.post("/v1/chat/completions", {"stream": True}).read()
    assert proxy.line(0)["tokens_in"] == "8"
    assert proxy.line(0)["tokens_out"] == "8"
    engine.script = lambda turn: turn.stream(text_event("a"), last_events(7, 3))
    proxy.post("/v1/chat/completions", {"stream": True}).read()
    assert proxy.line(1)["tokens_in"] == "7"


def test_a_request_takes_one_slot_only(engine: ScriptedEngine, proxy: Proxy) -> None:
    message = {"role": "user", "content": "x"}
    chat, plain = "/v1/chat/completions", "/v1/completions"
    for path, field, value in (
        (plain, "n", 2),
        (chat, "n", 2),
        (plain, "n_cmpl", 2),
        (plain, "best_of", 2),
        (plain, "n", "2"),
        (plain, "n", -1),
        (plain, "prompt", ["a", "b"]),
        (plain, "prompt", [[1, 2], [3]]),
        (chat, "messages", [message] * 257),
    ):
        answer = proxy.post(path, {field: value})
        assert answer.status == 400, (field, value)
        assert answer.json()["error"]["message"].startswith(f"{field}: ")
    assert engine.turns == []
    engine.script = lambda turn: turn.plain(200, b"{}")
    for path, field, value in (
        (plain, "n", 1),
        (chat, "n", None),
        (plain, "prompt", ["a"]),
        (plain, "prompt", [12, "a", 7]),
        (plain, "prompt", [[1, 2]]),
        (chat, "messages", [message] * 256),
    ):
        assert proxy.post(path, {field: value}).status == 200, (field, value)
