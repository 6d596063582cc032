"""The chat of a real host, asked as users ask: examples, memory, a crowd."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from bench.crowd import troubles
from bench.crowd_clients import Crowd, Tally, Target, ask_all
from bench.crowd_memory import watched
from edge.fleet import CHECKOUT
from lab import fleet
from tests.lab.chat_host import ChatHost, user

pytestmark = [pytest.mark.timeout(600)]


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


def test_a_crowd_loses_nothing(chat: ChatHost) -> None:
    crowd, tally = Crowd(clients=50, rounds=2, max_tokens=4, memory_rounds=1), Tally()
    with watched(fleet.ssh_command(chat.lab.lab, chat.host)) as services:
        asyncio.run(ask_all(Target(chat.url, chat.key), crowd, tally))
    assert troubles(tally, services, crowd.questions) == []
    assert tally.busy > 0  # the queue is shorter than the crowd, and they came back
