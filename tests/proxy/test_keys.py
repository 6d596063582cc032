"""API keys on the wire: who is let in, how often, and what is never said."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_proxy.config import ConfigError, Settings
from chat_proxy.keys import Keyring, read_keys
from chat_proxy.problem import Problem
from chat_proxy.service import Service

from tests.proxy.key_file import KeyFile, bearer, token
from tests.proxy.proxy_process import Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine

PROMPT = {"prompt": "hi"}
CLOSED = ("/chat", "/v1/chat/completions", "/v1/completions")


def refusal(answer: Answer) -> str:
    """The message of a 401, which is as it should be in all else."""
    assert answer.status == 401
    assert answer.header("www-authenticate") == "Bearer"
    error = answer.json()["error"]
    assert error["type"] == "authentication_error"
    message: str = error["message"]
    return message


def test_only_keys_in_force_are_let_in(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    old = {"name": "old", "expires": time.time() - 1}
    young = {"name": "young", "expires": time.time() + 1000}
    proxy = start_proxy(api_keys_file=keys.write("till", old, young), engine_key="the-engine-s")
    for name in ("till", "young"):
        assert proxy.post("/chat", PROMPT, **bearer(name)).text() == "Hello there"
    host = {"authorization": "bearer the-engine-s"}  # the scheme's case does not matter
    assert proxy.post("/chat", PROMPT, **host).text() == "Hello there"
    asked = len(engine.turns)
    for path in CLOSED:
        assert "Authorization: Bearer KEY" in refusal(proxy.post(path, PROMPT))
    for header in ("", "Bearer", "Bearer ", f"Basic {token('till')}", token("till")):
        assert "wants a key" in refusal(proxy.post("/chat", PROMPT, authorization=header))
    for wrong in ("x", token("till") + "x", token("till")[:-1], "ключ".encode().decode("latin-1")):
        answer = proxy.post("/chat", PROMPT, authorization=f"Bearer {wrong}")
        assert refusal(answer) == "this key is not known here"
    assert refusal(proxy.post("/chat", PROMPT, **bearer("old"))) == "the key old has expired"
    assert "wants a key" in refusal(proxy.get("/v1/models"))
    assert "wants a key" in refusal(proxy.get("/metrics"))
    assert len(engine.turns) == asked
    for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json"):
        assert proxy.get(path).status == 200, path


def test_the_engine_sees_its_own_key_and_no_client_s(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    proxy = start_proxy(api_keys_file=keys.write("till"), engine_key="the-engine-s")
    proxy.post("/v1/chat/completions", {"messages": []}, **bearer("till")).read()
    assert engine.turn(0).headers["authorization"] == "Bearer the-engine-s"


def test_a_rate_holds_for_each_key(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    slow = {"name": "slow", "rate_per_minute": 2}
    proxy = start_proxy(api_keys_file=keys.write(slow, "quick"))
    for _ in range(2):
        assert proxy.post("/chat", PROMPT, **bearer("slow")).text()
    refused = proxy.post("/v1/chat/completions", PROMPT, **bearer("slow"))
    assert refused.status == 429
    error = refused.json()["error"]
    assert error["type"] == "rate_limited"
    assert "slow may send 2 requests a minute" in error["message"]
    assert 1 <= int(refused.header("retry-after") or "") == error["retry_after"] <= 30
    assert proxy.post("/chat", PROMPT, **bearer("quick")).text()
    assert proxy.get("/metrics", **bearer("slow")).status == 200


def test_after_the_named_wait_there_is_one_more(
    keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ring = Keyring(Path(keys.write({"name": "slow", "rate_per_minute": 7})), None)
    key = ring.holder(token("slow").encode())
    for _ in range(7):
        ring.spend(key)
    for _ in range(3):
        with pytest.raises(Problem) as caught:
            ring.spend(key)
        now += caught.value.retry_after_s or 0
        ring.spend(key)


def test_a_changed_file_counts_at_once_and_a_broken_one_does_not(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    proxy = start_proxy(api_keys_file=keys.write("before"))
    assert proxy.post("/chat", PROMPT, **bearer("before")).text()
    keys.write("after")
    assert proxy.post("/chat", PROMPT, **bearer("before")).status == 401
    assert proxy.post("/chat", PROMPT, **bearer("after")).text()
    for broken in ("", '{"keys": ['):
        keys.path.write_text(broken)
        assert proxy.post("/chat", PROMPT, **bearer("after")).text()
    keys.path.unlink()
    assert proxy.post("/chat", PROMPT, **bearer("after")).text()
    keys.write("later")
    assert proxy.post("/chat", PROMPT, **bearer("after")).status == 401
    assert proxy.post("/chat", PROMPT, **bearer("later")).text()


def test_a_file_that_cannot_be_read_for_a_moment_counts_later(
    keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(keys.write("alice", "bob"))
    ring = Keyring(path, None)
    alice = token("alice").encode()
    ring.holder(alice)
    keys.write("bob")
    with monkeypatch.context() as patch:

        def cannot(*_: object, **__: object) -> None:
            raise OSError(24, "Too many open files")

        patch.setattr(Path, "open", cannot)
        assert ring.holder(alice).name == "alice"  # the last good keys
    with pytest.raises(Problem, match="not known"):
        ring.holder(alice)


def test_a_file_edited_in_place_counts_whatever_its_times_say(keys: KeyFile) -> None:
    path = Path(keys.write("alice"))
    ring = Keyring(path, None)
    before = path.stat()
    text = path.read_text().replace('"alice"', '"alina"')
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert ring.holder(token("alice").encode()).name == "alina"


def test_no_key_shows_in_the_log(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    proxy = start_proxy(api_keys_file=keys.write("till"), engine_key="the-engine-s")
    proxy.post("/chat", PROMPT, **bearer("till")).events()
    proxy.post("/chat", PROMPT, **bearer("stranger")).read()
    keys.path.write_text(token("till"))
    proxy.post("/chat", PROMPT, **bearer("till")).events()
    proxy.line(2)
    assert [proxy.line(n)["caller"] for n in range(3)] == ["till", "-", "till"]
    said = "\n".join(proxy.lines) + proxy.stop()
    assert "the keys before it hold on" in said
    for secret in (token("till"), token("stranger"), "the-engine-s"):
        assert secret not in said


def test_the_log_tells_who_knocked_and_whose_rate_is_used_up(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    proxy = start_proxy(api_keys_file=keys.write({"name": "slow", "rate_per_minute": 1}))
    for header in (bearer("slow"), bearer("slow"), bearer("stranger"), {}):
        proxy.post("/chat", PROMPT, **header).read()
    lines = [proxy.line(n) for n in range(4)]
    assert [one["status"] for one in lines] == ["200", "429", "401", "401"]
    assert [one["caller"] for one in lines] == ["slow", "slow", "-", "-"]
    assert [one["from"] for one in lines] == ["-", "-", "127.0.0.1", "127.0.0.1"]


def test_a_name_that_somebody_let_point_here_opens_nothing(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    """DNS rebinding: to a browser, a page of evil.example is a page of this server."""
    proxy = start_proxy(cors_origins="https://chat.shop.example")
    port = proxy.port

    def status(host: str, path: str = "/chat") -> int:
        named = {"host": host, "origin": f"http://{host}"}
        answer = proxy.post(path, PROMPT, **named) if path == "/chat" else proxy.get(path, **named)
        answer.read()
        return answer.status

    for host in ("evil.example", f"evil.example:{port}", "EVIL.example.", "127.0.0.1.evil.example"):
        assert status(host) == 403, host
        assert status(host, "/metrics") == 403, host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]:80", "shop-till", "a.localhost"):
        assert status(host) == 200, host
    assert status("chat.shop.example") == 200
    assert proxy.post("/chat", PROMPT, host="evil.example").status == 403
    # where a key is asked for, the key decides: a page that has it was given it
    asking = start_proxy(api_keys_file=keys.write("till"))
    named = {"host": "till.shop.example", "origin": "http://till.shop.example"}
    assert asking.post("/chat", PROMPT, **named).status == 401
    assert asking.post("/chat", PROMPT, **named, **bearer("till")).text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"keys": {}}',
        '{"keys": [1]}',
        '{"keys": [{}]}',
        *(
            json.dumps({"keys": [{"name": "a", "sha256": "0" * 64, "rate_per_minute": None,
                                  "expires": None, **change}]})
            for change in ({"name": ""}, {"name": "a b"}, {"name": 1}, {"name": "host"},
                           {"sha256": "0"}, {"sha256": "0" * 62}, {"sha256": "x" * 64},
                           {"sha256": None}, {"rate_per_minute": 0}, {"rate_per_minute": True},
                           {"rate_per_minute": 1.5}, {"expires": "2027"}, {"more": 1})
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_none_stops_the_start(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"it is not|is no list|key number 1|one is named"):
        read_keys(file)
    with pytest.raises(ConfigError, match=r"API_KEYS_FILE='.*/keys' cannot be used"):
        Service(Settings(api_keys_file=str(file)))


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Service(Settings(api_keys_file=str(tmp_path / "absent")))


def test_pages_of_named_origins_may_ask(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    shop = "https://shop.example"
    proxy = start_proxy(cors_origins=f"{shop} http://other.example:81")

    def ask(origin: str) -> Answer:
        return proxy.post("/chat", PROMPT, origin=origin)

    answers = [ask(shop), ask(shop), ask("http://other.example:81")]
    assert [one.text() for one in answers] == ["Hello there"] * 3
    allowed = [one.header("access-control-allow-origin") for one in answers]
    assert allowed == [shop, shop, "http://other.example:81"]
    stranger = ask("https://shop.example.evil")
    assert stranger.status == 403
    assert stranger.header("access-control-allow-origin") is None
    preflight = proxy.get(
        "/chat",
        "OPTIONS",
        origin=shop,
        access_control_request_method="POST",
        access_control_request_headers="authorization,content-type,x-stainless-os",
    )
    assert preflight.status == 200
    allowed = (preflight.header("access-control-allow-headers") or "").lower()
    assert {"authorization", "x-stainless-os"} <= set(re.split(r",\s*", allowed))


def test_without_named_origins_there_is_no_cors(engine: ScriptedEngine, proxy: Proxy) -> None:
    for answer in (
        proxy.get("/chat", "OPTIONS", origin="https://a.b", access_control_request_method="POST"),
        proxy.post("/chat", PROMPT, origin="https://a.b"),
    ):
        assert answer.status in (403, 405)
        assert answer.header("access-control-allow-origin") is None


def test_errors_hold_nothing_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    secret: Any = {"keys": [{"name": "a", "sha256": "edge-in-the-clear"}]}
    file.write_text(json.dumps(secret))
    with pytest.raises(ValueError, match="key number 1") as caught:
        read_keys(file)
    assert "clear" not in str(caught.value)
