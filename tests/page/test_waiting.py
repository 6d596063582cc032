"""Waiting and failing, in words."""

from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Route, expect

from tests.page.chat_page import ChatPage, Gate
from tests.proxy.proxy_process import Answer, Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event
from tests.proxy.test_history import counting

OpenPage = Callable[..., ChatPage]
StartProxy = Callable[..., Proxy]


def fill(proxy: Proxy, engine: ScriptedEngine, count: int) -> list[Answer]:
    """Other clients: the first is answered for as long as the test wants, the rest wait."""
    engine.script = Turn.wait_gone
    others = [proxy.chat("first")]
    engine.turn(0)
    for number in range(1, count):
        others.append(proxy.chat(f"other {number}"))
        assert others[-1].block() == f": queue {number}\n"  # it has its place
    return others


@pytest.mark.parametrize(
    ("locale", "second", "first"),
    [
        (
            "en-GB",
            "Waiting for a free place: number 2 in the queue",
            "Waiting for a free place: number 1 in the queue",
        ),
        ("zh-CN", "正在排队：第 2 位", "正在排队：第 1 位"),
    ],
)
def test_the_place_in_the_queue(
    engine: ScriptedEngine,
    start_proxy: StartProxy,
    open_page: OpenPage,
    locale: str,
    second: str,
    first: str,
) -> None:
    proxy = start_proxy(slots=1, queue_limit=4, heartbeat_s=0.05)
    chat = open_page(proxy, locale=locale)
    others = fill(proxy, engine, 2)
    chat.ask("And I?")
    expect(chat.note).to_have_text(second)
    others[1].leave()
    expect(chat.note).to_have_text(first)
    engine.script = lambda turn: turn.say("Your turn")
    others[0].leave()
    chat.expect_state("done")
    expect(chat.answer).to_have_text("Your turn")
    told = [line for line in chat.spoken() if line in (second, first)]
    assert told == [second, first]  # each once


def test_the_model_starts_and_reads(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    chat = open_page(start_proxy(heartbeat_s=0.05))
    engine.loading = True
    engine.script = gate = Gate("Here")
    chat.ask("Hello?")
    expect(chat.note).to_have_text("The model is starting: your question is kept and waits")
    engine.loading = False
    expect(chat.note).to_have_text("The model is reading your question")
    gate.step()
    expect(chat.note).to_have_text("Writing")
    gate.step()
    chat.expect_state("done")


def test_busy_is_counted_down(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    proxy = start_proxy(slots=1, queue_limit=1, heartbeat_s=0.05)
    chat = open_page(proxy)
    chat.page.clock.install()
    chat.open()
    others = fill(proxy, engine, 2)
    chat.ask("And I?")
    expect(chat.note).to_have_text(
        "The server is busy: all places are taken and the queue is full."
    )
    expect(chat.more).to_have_text("You can try again in 20 seconds.")
    chat.page.clock.run_for(5000)
    expect(chat.more).to_have_text("You can try again in 15 seconds.")
    chat.page.clock.run_for(14_000)
    expect(chat.more).to_have_text("You can try again in 1 second.")
    chat.page.clock.run_for(2000)
    expect(chat.more).to_have_text("You can try again now.")
    told = [line for line in chat.spoken() if "again" in line]
    assert len(told) == 2, "the seconds are not read out one by one"
    engine.script = lambda turn: turn.say("Now you")
    for one in others:
        one.leave()
    chat.retry()
    chat.expect_state("done")
    expect(chat.answer).to_have_text("Now you")
    expect(chat.page.locator(".turn")).to_have_count(1)


def test_an_engine_that_is_away(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    chat = open_page(start_proxy(engine_wait_s=0.2), locale="zh-CN")
    engine.stop()
    chat.ask("在吗？")
    expect(chat.note).to_have_text("模型目前没有运行。")
    expect(chat.more).to_have_text("5 秒后可以重试。")
    engine.start()
    chat.press("重试")
    chat.expect_state("done")


def test_the_engine_dies_in_the_middle(chat: ChatPage, engine: ScriptedEngine) -> None:
    def script(turn: Turn) -> None:
        turn.begin()
        turn.part(text_event("Half of"))
        turn.wait_read()
        turn.die()

    engine.script = script
    chat.ask("Speak")
    chat.expect_state("failed")
    expect(chat.note).to_have_text("The model stopped in the middle of the answer.")
    expect(chat.answer).to_have_text("Half of")
    engine.script = lambda turn: turn.say("All of it")
    chat.retry()
    expect(chat.answer).to_have_text("All of it")


def test_the_connection_is_lost_and_comes_back(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    proxy = start_proxy()
    chat = open_page(proxy)
    engine.script = gate = Gate("Half of", " it")
    chat.ask("Speak")
    gate.step()
    expect(chat.answer).to_have_text("Half of")
    proxy.process.kill()
    expect(chat.note).to_have_text("The connection was lost before the answer was complete.")
    expect(chat.answer).to_have_text("Half of")
    proxy.process.wait()
    chat.press("Retry")
    expect(chat.note).to_have_text("The server cannot be reached.")
    chat.page.context.set_offline(True)
    chat.press("Retry")
    expect(chat.note).to_contain_text("This device is offline.")
    chat.page.context.set_offline(False)
    engine.script = lambda turn: turn.say("Back")
    proxy.start()
    chat.press("Retry")
    expect(chat.answer).to_have_text("Back")


def test_the_proxy_is_stopped(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    proxy = start_proxy(drain_s=0)
    chat = open_page(proxy)
    engine.script = gate = Gate("Half of", " it")
    chat.ask("Speak")
    gate.step()
    expect(chat.answer).to_have_text("Half of")
    proxy.terminate()
    expect(chat.note).to_have_text("The server is restarting.")
    expect(chat.more).to_contain_text("again")


def test_what_a_balancer_in_between_says(chat: ChatPage) -> None:
    """Not this proxy's answers: HTML, with or without a time; an event that is none."""
    answers = [
        (503, "text/html", "<h1>503</h1>", {"retry-after": "7"}, "cannot answer right now", "7 s"),
        (502, "text/html", "<h1>502</h1>", {}, "cannot answer right now", ""),
        (418, "application/json", "[]", {}, "does not understand", ""),
        (200, "text/event-stream", "data: {oops\n\n", {}, "does not understand", ""),
        (200, "text/event-stream", 'data: {"text":"a"}\n\n', {}, "connection was lost", ""),
        (200, "text/html", "<h1>Log in</h1>", {}, "connection was lost", ""),
    ]
    for status, kind, body, headers, note, more in answers:
        chat.page.route(
            "**/chat",
            partial(
                Route.fulfill, status=status, body=body, headers={"content-type": kind, **headers}
            ),
            times=1,
        )
        chat.question.fill("Hello?")
        chat.question.press("Enter")
        chat.expect_state("failed")
        expect(chat.note).to_contain_text(note)
        expect(chat.more).to_contain_text(more)
        assert chat.page.locator("h1").count() == 1


def test_messages_that_were_left_out(
    engine: ScriptedEngine, start_proxy: StartProxy, open_page: OpenPage
) -> None:
    proxy = start_proxy(context_per_slot=400, max_tokens=300)
    engine.script = counting
    chat = open_page(proxy)
    chat.set(rounds="20")
    for number in range(3):
        chat.ask_through(" ".join([f"question {number}", *["word"] * 40]))
    expect(chat.more).to_have_text(
        "The oldest messages were left out (2): the conversation is longer than the model can hold."
    )
    assert "left out" in chat.spoken()[-1]


def test_an_answer_that_was_cut(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = lambda turn: turn.stream(text_event("On and"), last_events(finish="length"))
    chat.ask_through("Go on")
    expect(chat.more).to_have_text("The answer was cut at the length limit.")


def test_a_question_that_is_refused(chat: ChatPage, engine: ScriptedEngine) -> None:
    said = b'{"error":{"code":400,"type":"x","message":"no such thing"}}'
    engine.script = lambda turn: turn.plain(400, said)
    chat.ask("Do it")
    expect(chat.note).to_have_text("The server does not accept this question: no such thing")
    too_long = "too long for the server"
    chat.ask("x" * 200_000)
    expect(chat.note).to_contain_text(too_long)
    chat.press("New chat")
    engine.script = lambda turn: turn.plain(
        400, b'{"error":{"type":"exceed_context_size_error","n_prompt_tokens":9}}'
    )
    chat.ask("Something shorter, but not short enough")
    expect(chat.note).to_contain_text(too_long)


def test_an_empty_answer(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = lambda turn: turn.stream(last_events(tokens_out=1))
    chat.ask_through("Well?")
    expect(chat.more).to_have_text("The model gave no answer.")
    assert "gave no answer" in chat.spoken()[-1]
