"""The chat of a real host: real engine, real model, real systemd, asked as users ask."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from bench.crowd import troubles
from bench.crowd_clients import Crowd, Tally, Target, ask_all
from bench.crowd_memory import watched
from edge.fleet import CHECKOUT
from lab import fleet
from tests.lab.chat_host import ChatHost, await_true, connect
from tests.lab.own_lab import OwnLab, make_lab
from tests.lab.rollout import deploy

pytestmark = [pytest.mark.timeout(600)]

NUMBERS = "Write the numbers from 1 to 500, one after another."
"""The model counts on until it is cut off: at temperature 0 always, as far as 512 tokens."""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHost]:
    """One provisioned host."""
    lab = make_lab(f"c{os.getpid() % 1_000_000}", tmp_path_factory.mktemp("chat"))
    try:
        fleet.up(lab, 1)
        own = OwnLab(lab)
        done = deploy(own)
        assert done.code == 0, done.log
        with connect(own, own.host("n100")) as host:
            yield host
    finally:
        fleet.down(lab)


@pytest.fixture(autouse=True)
def _idle(chat: ChatHost) -> None:
    """Nothing of the test before is left in the engine."""
    chat.await_busy(0, seconds=200)


# Examples ----------------------------------------------------------------------------------------


def examples(page: str, language: str) -> list[str]:
    """The blocks of code on a page of the documentation that ask a device."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [block for block in blocks if "http://DEVICE:8000" in block]


PAGES = ("README.md", "docs/chat.md")
SHELL = [(page, n) for page in PAGES for n in range(len(examples(page, "sh")))]
PYTHON = [(page, n) for page in PAGES for n in range(len(examples(page, "python")))]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "number"), SHELL)
def test_the_curl_examples(chat: ChatHost, page: str, number: int) -> None:
    command = chat.filled(examples(page, "sh")[number])
    output = run("bash", "-c", command)
    if '"stream": false' in command:
        found = json.loads(output)
        assert "Robert" in found["text"]
    else:
        assert "curl -N" in command
        events = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("data:")]
        assert sum("text" in event for event in events) > 1
        found = events[-1]
        assert found["done"] is True
    assert {"finish_reason", "model", "usage", "timings", "dropped_messages"} <= set(found)


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_the_examples_with_the_openai_client(chat: ChatHost, page: str, number: int) -> None:
    before = {kind: chat.requests(kind) for kind in ASKED[page]}
    output = run(sys.executable, "-c", chat.filled(examples(page, "python")[number]))
    assert len(output.split()) > 10
    assert {kind: chat.requests(kind) - n for kind, n in before.items()} == ASKED[page]


ASKED = {
    "README.md": {"/v1/models": 1, "/v1/chat/completions": 2},
    "docs/chat.md": {"/v1/completions": 1, "/v1/chat/completions": 1},
}
"""What the examples ask, and how often, as the proxy counts it."""


def test_the_openai_client_streams(chat: ChatHost) -> None:
    device = OpenAI(base_url=f"{chat.url}/v1", api_key=chat.key, max_retries=0)
    request: dict[str, Any] = {"model": "any", "max_tokens": 16, "temperature": 0}
    hello = device.chat.completions.create(messages=[user("Hello!")], **request)  # type: ignore[call-overload]
    parts = device.chat.completions.create(messages=[user("Hello!")], stream=True, **request)  # type: ignore[call-overload]
    texts = [part.choices[0].delta.content or "" for part in parts]
    assert len(texts) > 8
    assert "".join(texts) == hello.choices[0].message.content
    whole = device.completions.create(prompt="One, two,", **request)
    parts = device.completions.create(prompt="One, two,", stream=True, **request)
    texts = [part.choices[0].text for part in parts]
    assert len(texts) > 8
    assert "".join(texts) == whole.choices[0].text
    with pytest.raises(BadRequestError, match="one answer"):
        device.completions.create(prompt="One, two,", n=2, **request)


# Leaving -----------------------------------------------------------------------------------------

TOKENS = {"/chat": 500, "/v1/chat/completions": 1200, "/v1/completions": 1200}
"""What is asked for, by path; a step of the engine makes one token, of every slot at once."""


def long_answer(path: str, *, stream: bool, before: str = "") -> dict[str, Any]:
    """A request that the engine answers with all its TOKENS; `before` is to be read first."""
    body: dict[str, Any] = {"max_tokens": TOKENS[path], "temperature": 0, "stream": stream}
    prompt = before + NUMBERS
    if path == "/v1/chat/completions":
        return {**body, "messages": [user(prompt)], "ignore_eos": True}
    return {**body, "prompt": prompt, **({} if path == "/chat" else {"ignore_eos": True})}


@pytest.mark.parametrize("path", TOKENS)
def test_a_client_that_stays_gets_it_all(chat: ChatHost, path: str) -> None:
    before = chat.decodes()
    events = chat.post(path, long_answer(path, stream=True)).events()
    assert len(events) >= TOKENS[path]
    assert chat.decodes() - before >= TOKENS[path]


def leave(chat: ChatHost, path: str, when: str) -> int:
    """Ask for a long answer, hang up while the engine is at it, and wait until it is not.

    Returns:
        Steps that the engine took in between, whoever they were for.
    """
    others = {slot["id"] for slot in chat.busy()}
    waits = when == "before the first token"
    # From its first words on nothing that the engine has read before, and a second's reading.
    before = f"{path} {when} {others}: " + "All work and no play. " * 250
    request = long_answer(path, stream=when != "not streaming", before=before if waits else "")
    answer = chat.post(path, request)
    (slot,) = (one for one in chat.await_busy(len(others) + 1) if one["id"] not in others)
    if when == "mid-stream":
        for _ in range(3):
            assert answer.block().startswith("data: ")
    elif when == "not streaming":
        await_true(lambda: chat.generated(slot) > 3, "it generates")
    assert waits == (chat.generated(slot) == 0)
    assert answer.silent == (when != "mid-stream")
    decoded = chat.decodes()
    answer.leave()
    # An engine that has no token to send looks after its client once it has had nothing else to
    # report for a second. What its slots do is something to report: it is asked less often.
    chat.await_busy(len(others), seconds=60, every_s=0.05 if when == "mid-stream" else 1.5)
    return chat.decodes() - decoded


WHEN = ("mid-stream", "before the first token", "not streaming")


@pytest.mark.parametrize("path", TOKENS)
@pytest.mark.parametrize("when", WHEN)
def test_the_engine_stops_for_a_client_that_leaves(chat: ChatHost, path: str, when: str) -> None:
    assert leave(chat, path, when) < TOKENS[path] / 2


@pytest.mark.parametrize("path", TOKENS)
@pytest.mark.parametrize("when", WHEN)
def test_it_stops_for_one_of_two(
    chat: ChatHost, path: str, when: str, request: pytest.FixtureRequest
) -> None:
    if path != "/chat" and when == "not streaming":
        # llama.cpp, server_response::recv_with_timeout: the second begins anew with each token of
        # any slot. Not strict: on a machine so slow that none comes for a second, it does look.
        request.applymarker(pytest.mark.xfail(reason="the engine does not look while others go on"))
    other = chat.post("/v1/completions", hold(0))
    try:
        chat.await_busy(1)
        steps = leave(chat, path, when)
        (slot,) = chat.busy()
        assert slot["params"]["max_tokens"] == HOLD_TOKENS  # the other one was not disturbed
        assert steps < TOKENS[path] / 2
    finally:
        other.leave()


def test_the_queue_moves_on_when_others_leave(chat: ChatHost) -> None:
    held = [chat.post("/v1/completions", hold(n)) for n in range(2)]
    chat.await_busy(2)
    gone, last = (chat.post("/chat", {"prompt": "Hello!", "max_tokens": 4}) for _ in range(2))
    last.await_block(": queue 2")
    gone.leave()  # from the queue
    last.await_block(": queue 1")
    held[0].leave()  # from a slot
    assert last.events()[-1]["done"] is True
    (slot,) = chat.busy()  # the other one was not disturbed
    assert slot["params"]["max_tokens"] == HOLD_TOKENS
    held[1].leave()


HOLD_TOKENS = 1900


def hold(n: int) -> dict[str, Any]:
    """A request that keeps a slot until it is left or the slot's context is full."""
    return {
        "prompt": f"{n}: {NUMBERS}",
        "max_tokens": HOLD_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }


# Memory ------------------------------------------------------------------------------------------


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def prompt_tokens(chat: ChatHost, messages: list[dict[str, str]]) -> int:
    """What the engine makes of these messages with the model's own template, in tokens."""
    prompt = chat.engine("/apply-template", {"messages": messages})["prompt"]
    asked = {"content": prompt, "add_special": True, "parse_special": True}
    return len(chat.engine("/tokenize", asked)["tokens"])


def whole(chat: ChatHost, **request: Any) -> dict[str, Any]:
    """The one JSON object of an answer that does not stream."""
    answer = chat.post("/chat", {"temperature": 0, "stream": False, "max_tokens": 24, **request})
    found: dict[str, Any] = answer.json()
    assert answer.status == 200, found
    return found


def test_conversations_keep_their_own_memory(chat: ChatHost) -> None:
    names = ("Alice", "Robert", "Ingrid", "Mateo")
    talks = {name: [user(f"My dog is called {name}.")] for name in names}
    for name, talk in talks.items():
        first = whole(chat, messages=talk)
        assert first["usage"]["prompt_tokens"] == prompt_tokens(chat, talk)
        # The words are put into its mouth: what a model this small says first decides the rest.
        talk += [assistant(f"{name} is a lovely name for a dog.")]
    question = "What is the name of my dog?"
    for name, talk in talks.items():
        second = whole(chat, messages=[*talk, user(question)])
        assert second["usage"]["prompt_tokens"] == prompt_tokens(chat, [*talk, user(question)])
        assert name in second["text"]
        assert second["dropped_messages"] == 0
    alone = whole(chat, prompt=question)
    assert not any(name in alone["text"] for name in names)


@pytest.mark.parametrize("stream", [True, False])
def test_a_history_too_long_loses_its_oldest_turns(chat: ChatHost, stream: bool) -> None:
    (context,) = {slot["n_ctx"] for slot in chat.engine("/slots")}
    system = {"role": "system", "content": "You know a lot about dogs."}
    turns: list[dict[str, str]] = []
    while prompt_tokens(chat, [system, *turns]) < 1.5 * context:
        for n in range(len(turns), len(turns) + 20, 2):
            turns += [user(f"Dog number {n} is called Rex {n}."), assistant("A lovely name! " * 3)]
    turns += [user("My own dog is called Alice."), assistant("Alice is a lovely name for a dog.")]
    turns += [user("What is the name of my own dog?")]
    request = {"messages": [system, *turns], "max_tokens": 24, "temperature": 0, "stream": stream}
    answer = chat.post("/chat", request)
    events = answer.events() if stream else [answer.json()]
    last, text = events[-1], "".join(event.get("text", "") for event in events)
    assert last["dropped_messages"] > 0
    kept = turns[last["dropped_messages"] :]
    assert len(kept) > 10  # no more than must go
    assert last["usage"]["prompt_tokens"] == prompt_tokens(chat, [system, *kept])
    assert last["usage"]["prompt_tokens"] + 24 <= context
    assert "Alice" in text


# Restarts ----------------------------------------------------------------------------------------

WAITING = 20


@pytest.mark.parametrize(
    "how", ["systemctl restart llama-server", "systemctl kill --signal=KILL llama-server"]
)
def test_waiting_clients_do_not_notice_an_engine_restart(chat: ChatHost, how: str) -> None:
    before = chat.main_pid("llama-server")
    held = [chat.post("/v1/completions", hold(n)) for n in range(2)]
    for answer in held:
        assert answer.block().startswith("data: ")  # both are being answered
    waiting = [
        chat.post(
            ("/chat", "/v1/completions")[n % 2],
            {"prompt": f"{n}: Hello!", "max_tokens": 4, "stream": n % 4 < 2},
        )
        for n in range(WAITING)
    ]
    await_true(lambda: chat.metrics("queue") == [WAITING], f"{WAITING} wait")
    chat.root(how)
    for answer in held:  # what has begun cannot go on elsewhere: its client is told
        assert '"type": "engine_died"' in list(answer.blocks())[-1]
    for n, answer in enumerate(waiting):
        assert answer.status == 200
        if n % 4 < 2:
            (*events, last) = answer.events()
            assert events
            assert "error" not in last
        else:
            assert answer.json()["usage" if n % 2 else "text"]
    assert chat.main_pid("llama-server") != before


def test_a_proxy_restart_refuses_nobody(chat: ChatHost) -> None:
    end = threading.Event()
    outcomes: Counter[str] = Counter()

    def load(path: str, body: Any) -> None:
        while not end.is_set():
            try:
                answer = chat.get(path) if body is None else chat.post(path, body)
                outcomes[f"{path} {answer.status}"] += 1
                answer.response.read()
            except (OSError, http.client.HTTPException) as error:
                outcomes[f"{path} {type(error).__name__}"] += 1
            finally:
                answer.leave()

    question = {"prompt": "Hello!", "max_tokens": 4}
    work = [("/healthz", None)] * 4 + [("/chat", question)] * 4
    with ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(load, *one) for one in work]
        try:
            for _ in range(3):
                before = chat.main_pid("chat-proxy")
                seen = outcomes.total()
                chat.root("systemctl restart chat-proxy")
                await_true(lambda: outcomes.total() > seen + 20, "clients go on")  # noqa: B023
                assert chat.main_pid("chat-proxy") != before
        finally:
            end.set()
        for one in running:
            one.result()
    assert set(outcomes) == {"/healthz 200", "/chat 200"}, outcomes


# A crowd -----------------------------------------------------------------------------------------


def test_a_crowd_loses_nothing(chat: ChatHost) -> None:
    crowd, tally = Crowd(clients=50, rounds=2, max_tokens=4, memory_rounds=1), Tally()
    with watched(fleet.ssh_command(chat.lab.lab, chat.host)) as services:
        asyncio.run(ask_all(Target(chat.url, chat.key), crowd, tally))
    assert troubles(tally, services, crowd.questions) == []
    assert tally.busy > 0  # the queue is shorter than the crowd, and they came back
