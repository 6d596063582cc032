"""The engine restarts, and so does the proxy: clients wait, or are told."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tests.proxy.proxy_process import FILES, Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event


def test_requests_wait_while_the_model_is_loaded(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.loading = True
    answer = proxy.chat()
    ready = proxy.get("/readyz")
    assert (ready.status, ready.json()["reason"]) == (503, "the engine is loading its model")
    engine.loading = False
    assert answer.text() == "Hello there"
    assert proxy.get("/readyz").json() == {"status": "ready"}


def test_twenty_clients_wait_through_an_engine_restart(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=2, queue_limit=20, heartbeat_s=0.1)
    engine.script = Turn.wait_gone  # two are being worked on when the engine dies
    waiting = [proxy.chat(f"q{n}", stream=n % 2 == 0) for n in range(10)]
    waiting += [
        proxy.post("/v1/chat/completions", {"messages": [], "stream": True}) for _ in range(10)
    ]
    engine.turn(1)
    engine.stop()
    refused = proxy.get("/readyz")
    assert (refused.status, refused.json()["reason"]) == (
        503,
        "the engine does not accept connections",
    )
    engine.script = lambda turn: turn.say("back")
    engine.loading = True
    engine.start()
    assert proxy.get("/readyz").status == 503
    engine.loading = False
    for n, answer in enumerate(waiting):
        assert answer.status == 200
        if n >= 10:
            assert b"back" in answer.read()
        elif n % 2:
            assert answer.json()["text"] == "back"
        else:
            assert answer.text() == "back"


def test_an_engine_that_stays_away(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    # If each waited in turn, the last would wait longer for its slot than it may.
    proxy = start_proxy(slots=1, engine_wait_s=0.5, queue_wait_s=3, heartbeat_s=0.2)
    engine.stop()
    streamed = proxy.chat()
    behind = [proxy.chat(stream=False) for _ in range(4)]
    behind += [proxy.post("/v1/completions", {"stream": True}) for _ in range(4)]
    comments = []
    while (block := streamed.block()).startswith(":"):
        comments.append(block)
    assert ": engine\n" in comments
    assert block.startswith("event: error\ndata: ")
    assert '"code": 503' in block
    assert '"retry_after": 5' in block
    for one in behind:
        assert one.status == 503
        assert one.header("retry-after") == "5"
        assert one.json()["error"]["type"] == "engine_unavailable"


def test_before_the_first_heartbeat_an_engine_that_stays_away_is_a_503(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(engine_wait_s=0.3)
    engine.loading = True
    answer = proxy.chat()
    assert (answer.status, answer.header("retry-after")) == (503, "5")


def test_a_request_that_kills_the_engine_is_not_sent_for_ever(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    engine.script = Turn.die
    answer = proxy.chat()
    assert answer.status == 502
    assert answer.json()["error"]["type"] == "engine_died"
    assert len(engine.turns) == 2


def test_an_answer_that_ends_without_a_word_is_asked_for_once_more(
    engine: ScriptedEngine, proxy: Proxy
) -> None:
    def script(turn: Turn) -> None:  # an engine that is told to stop before the first token
        engine.script = lambda turn: turn.say("again")
        turn.begin()
        turn.end()

    engine.script = script
    assert proxy.chat().text() == "again"


def streaming(proxy: Proxy, engine: ScriptedEngine, release: threading.Event) -> Answer:
    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("begun"))
        if release.wait(10):
            turn.part(text_event(" ended") + last_events())
            turn.end()

    engine.script = script
    answer = proxy.chat()
    assert answer.event() == 'data: {"text": "begun"}\n'
    return answer


def wait_refused(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except (ConnectionRefusedError, ConnectionResetError):  # the latter while it closes
            return
    raise AssertionError("the proxy still accepts connections")


def test_a_stop_lets_open_answers_finish_and_takes_no_new_ones(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(drain_s=20)
    release = threading.Event()
    answer = streaming(proxy, engine, release)
    proxy.terminate()
    wait_refused(proxy.port)
    release.set()
    assert answer.text() == " ended"
    assert proxy.process.wait(10) in (0, -15)


def test_the_port_that_is_taken_and_bad_settings_are_told(engine: ScriptedEngine) -> None:
    def run(**env: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "chat_proxy"]
        path = {"PATH": os.environ["PATH"]}
        return subprocess.run(
            command, cwd=FILES, env=path | env, capture_output=True, text=True, timeout=20
        )

    taken = run(EDGE_PROXY_PORT=str(engine.port))
    assert taken.returncode == 2
    assert f"cannot listen on 127.0.0.1:{engine.port}" in taken.stderr
    bad = run(EDGE_PROXY_SLOTS="many", EDGE_PROXY_SLOT="1")
    assert bad.returncode == 2
    assert "EDGE_PROXY_SLOTS='many' must be a whole number from 1 to 256" in bad.stderr
    assert "EDGE_PROXY_SLOT is not a setting" in bad.stderr
    assert "Traceback" not in taken.stderr + bad.stderr
