"""Clients' bodies in memory: bounded one by one, and all together."""

import json
from collections.abc import Callable

from tests.proxy.proxy_process import Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, text_event

LARGE = json.dumps({"prompt": "x " * 520_000}).encode()
MEMORY_MIB = 192  # of the service


def wait(turn: Turn) -> None:
    turn.begin()
    turn.part(text_event("go"))
    turn.wait_gone()


def test_the_bound_of_a_body_follows_the_context(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(context_per_slot=2048)
    for _ in range(50):
        refused = proxy.post("/chat", LARGE)
        assert (refused.status, refused.json()["error"]["code"]) == (413, 413)
    # every character of a full context may be an escape
    fits = b'{"prompt": "' + b"\\u00e9" * 8000 + b'"}'
    assert proxy.post("/chat", fits).text() == "Hello there"
    assert engine.turn(0).json["messages"][0]["content"] == "é" * 8000


def test_a_crowd_with_large_bodies_is_told_to_come_back(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(context_per_slot=1 << 20, queue_limit=64, heartbeat_s=0.05)
    engine.script = wait
    crowd: list[Answer] = [proxy.post("/chat", LARGE)]
    assert crowd[0].event()
    crowd += [
        proxy.post(path, LARGE, accept="text/event-stream")
        for _ in range(25)
        for path in ("/chat", "/v1/completions")
    ]
    refused = [proxy.line(n) for n in range(51 - 16)]
    assert {one["status"] for one in refused} == {"503"}
    # those that came in parallel may have kept each other out: fill up one by one
    while (late := proxy.post("/chat", LARGE)).status == 200:
        crowd.append(late)
        assert len(crowd) < 51 + 16
    assert late.status == 503
    assert proxy.memory_mib("VmHWM") < MEMORY_MIB * 0.75
    assert int(late.header("retry-after") or "") == late.json()["error"]["retry_after"] >= 1
    for one in crowd:
        one.leave()
    proxy.settle()
    engine.script = lambda turn: turn.say("next")
    again = [proxy.post("/chat", LARGE) for _ in range(15)]
    assert [one.text() for one in again] == ["next"] * 15
