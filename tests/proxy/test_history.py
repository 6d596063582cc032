"""A long conversation: what is dropped, what stays, and that the client is told."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from chat_proxy.history import Turn, fit

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine
from tests.proxy.scripted_engine import Turn as EngineTurn


def words(messages: list[Turn]) -> int:
    return sum(len(one["content"].split()) for one in messages)


async def count_words(messages: list[Turn]) -> int:
    return words(messages)


def conversation(rounds: int, *, system: bool = False, length: int = 10) -> list[Turn]:
    turns = [{"role": "system", "content": "be brief"}] if system else []
    for number in range(rounds):
        text = " ".join([f"q{number}", *["word"] * (length - 1)])
        turns.append({"role": "user", "content": text})
        turns.append({"role": "assistant", "content": text.replace("q", "a", 1)})
    return [*turns, {"role": "user", "content": "last question"}]


def kept(messages: list[Turn], budget: int) -> tuple[list[Turn], int]:
    body = json.dumps({"messages": messages, "seed": 1}).encode()
    short, dropped = asyncio.run(fit(body, budget, count_words))
    request = json.loads(short)
    assert request["seed"] == 1
    return request["messages"], dropped


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("length", [2, 10, 60])
@pytest.mark.parametrize("budget", [30, 100, 300, 1000])
def test_the_newest_turns_that_fit_stay(
    system: bool, rounds: int, length: int, budget: int
) -> None:
    asked = conversation(rounds, system=system, length=length)
    messages, dropped = kept(asked, budget)
    first = 1 if system else 0
    assert messages == [*asked[:first], *asked[first + dropped :]]
    assert messages[first]["role"] == "user"
    assert words(messages) <= budget or len(messages) == first + 1
    if words(asked) <= budget:
        assert dropped == 0
    elif dropped:
        # no more is lost than a step of `budget` bytes and the round that it ends in
        lost = asked[first : first + dropped]
        room = budget - words(messages)
        assert words(lost) > 0
        slack = budget // 5 + 4 * length + 4  # a word has five bytes here
        assert room <= slack or len(messages) == first + 1


def test_the_cut_stays_where_it_was_for_several_rounds() -> None:
    """What the engine has read of a conversation is of use only while it begins the same."""
    beginnings = []
    for rounds in range(30, 60):
        messages, _ = kept(conversation(rounds), 300)
        beginnings.append(messages[0]["content"])
    assert len(set(beginnings)) <= len(beginnings) / 2


def test_a_question_alone_is_left_as_it_is() -> None:
    asked = [{"role": "user", "content": "word " * 1000}]
    assert kept(asked, 100) == (asked, 0)


def test_the_last_question_stays_even_if_it_is_too_long() -> None:
    asked = [*conversation(3, system=True)[:-1], {"role": "user", "content": "word " * 1000}]
    messages, dropped = kept(asked, 100)
    assert messages == [asked[0], asked[-1]]
    assert dropped == 6


def test_a_short_conversation_costs_no_question_to_the_engine() -> None:
    async def never(messages: list[Turn]) -> int:
        raise AssertionError

    body = json.dumps({"messages": conversation(3)}).encode()
    assert asyncio.run(fit(body, len(body), never)) == (body, 0)


def test_an_engine_that_cannot_count_gets_all() -> None:
    async def cannot(messages: list[Turn]) -> None:
        return None

    body = json.dumps({"messages": conversation(30)}).encode()
    assert asyncio.run(fit(body, 10, cannot)) == (body, 0)


def counting(turn: EngineTurn) -> None:
    """An engine whose tokens are words."""
    if turn.path == "/apply-template":
        prompt = " ".join(one["content"] for one in turn.json["messages"])
        turn.plain(200, json.dumps({"prompt": prompt}).encode())
    elif turn.path == "/tokenize":
        assert turn.json["parse_special"]
        assert turn.json["add_special"]
        turn.plain(200, json.dumps({"tokens": turn.json["content"].split()}).encode())
    else:
        turn.say("fine")


def test_on_the_wire(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    proxy = start_proxy(context_per_slot=400, max_tokens=300)
    engine.script = counting
    asked = conversation(20, system=True)
    last = proxy.post("/chat", {"messages": asked}).events()[-1]
    assert last["done"]
    sent = engine.turns[-1].json["messages"]
    assert sent == [asked[0], *asked[1 + last["dropped_messages"] :]]
    assert 50 <= words(sent) <= 100
    # fewer tokens for the answer leave more of them for the conversation
    shorter = proxy.post("/chat", {"messages": asked, "max_tokens": 50}).events()[-1]
    assert shorter["dropped_messages"] < last["dropped_messages"]
    whole: Any = proxy.post("/chat", {"messages": asked, "stream": False}).json()
    assert whole["dropped_messages"] == last["dropped_messages"]
    assert proxy.chat().events()[-1]["dropped_messages"] == 0


def test_an_engine_that_refuses_to_count(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    for answer in (b"no JSON", b"[]", b'{"tokens": 7}'):

        def script(turn: EngineTurn, answer: bytes = answer) -> None:
            if turn.path == "/v1/chat/completions":
                turn.say("fine")
            else:
                turn.plain(200 if answer else 404, answer)

        proxy = start_proxy(context_per_slot=400, max_tokens=300)
        engine.script = script
        asked = conversation(20)
        answered = proxy.post("/chat", {"messages": asked}).events()
        assert answered[-1]["dropped_messages"] == 0
        assert engine.turns[-1].json["messages"] == asked


def test_leaving_while_tokens_are_counted_frees_the_place(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, context_per_slot=400, max_tokens=300)
    engine.script = EngineTurn.wait_gone
    first = proxy.post("/chat", {"messages": conversation(20)})
    turn = engine.turn(0)
    assert turn.path == "/apply-template"
    first.leave()
    assert turn.gone.wait(10)
    engine.script = counting
    assert proxy.chat().text() == "fine"
