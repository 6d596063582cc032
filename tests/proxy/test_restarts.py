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


def test_an_engine_whose_key_is_another_is_waited_for(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """One of the two is about to be restarted; a client's own key is not what is wrong."""
    proxy = start_proxy(slots=2, engine_wait_s=5, heartbeat_s=0.1, engine_key="new")

    def locked(turn: Turn) -> None:
        if turn.headers["authorization"] == "Bearer new" and engine_knows.is_set():
            turn.say("open")
        else:
            turn.plain(401, b'{"error":{"code":401,"message":"Invalid API Key"}}')

    engine_knows = threading.Event()
    engine.script = locked
    asked = [
        proxy.chat(),
        proxy.post("/v1/chat/completions", {"messages": [], "stream": True}),
        proxy.get("/v1/models"),
    ]
    assert asked[0].block() in (": prompt\n", ": engine\n")
    engine_knows.set()
    assert asked[0].text() == "open"
    assert [one.status for one in asked] == [200] * 3
    for one in asked[1:]:
        one.read()
    engine_knows.clear()
    patient = start_proxy(engine_wait_s=0.3, engine_key="new")
    refused = patient.post("/v1/chat/completions", {"messages": []})
    assert (refused.status, refused.header("retry-after")) == (503, "5")
    assert "another key" in refused.json()["error"]["message"]


def test_many_who_ask_whether_it_is_ready_share_one_look(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """Each connection to the engine takes one of its threads; with too many of them it aborts."""
    proxy = start_proxy()
    most = engine.most_at_once
    asked = [proxy.get("/readyz") for _ in range(100)]
    assert {one.status for one in asked} == {200}
    assert engine.most_at_once <= max(most, 2)  # one, and one that is just going
    engine.most_at_once = 0
    listed = [proxy.get("/v1/models") for _ in range(50)]
    assert {one.status for one in listed} == {200}
    for one in listed:
        one.read()
    assert 1 <= engine.most_at_once <= 6


def test_an_engine_that_generates_nothing_is_not_ready(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    """Its /health is answered all the same, by another of its threads."""
    proxy = start_proxy(slots=2, first_token_timeout_s=0.3)
    assert proxy.get("/readyz").status == 200
    engine.script = Turn.wait_gone
    assert proxy.chat().status == 504
    ready = proxy.get("/readyz")
    assert (ready.status, ready.json()["reason"]) == (
        503,
        "the engine takes requests, but generates nothing",
    )
    engine.script = lambda turn: turn.say("awake")
    assert proxy.chat().text() == "awake"  # requests go on to it
    assert proxy.get("/readyz").status == 200
    engine.script = Turn.wait_gone
    assert proxy.chat().status == 504
    engine.stop()
    engine.start()  # a new one is not to blame
    engine.script = lambda turn: turn.say("new")
    assert proxy.chat().text() == "new"
    assert proxy.get("/readyz").status == 200


def test_a_long_prompt_beside_other_answers_is_no_silence(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=2, first_token_timeout_s=0.5)

    def script(turn: Turn) -> None:
        if turn.json["messages"][-1]["content"] == "slow":
            turn.wait_gone()
        else:
            turn.say("quick")

    engine.script = script
    slow = proxy.chat("slow")
    engine.turn(0)
    assert proxy.chat("quick").text() == "quick"
    assert slow.status == 504
    assert proxy.get("/readyz").status == 200


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
