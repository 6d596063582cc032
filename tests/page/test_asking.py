"""Ask, watch, stop, ask on: with the engine's own view of each."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.chat_page import ChatPage, Gate, asked, questions
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, last_events, text_event

PAINTS = """
() => {
  window.paints = [];
  const look = (time) => {  // at a frame's start: what the frame before has painted
    const text = document.querySelector(".answer")?.innerText ?? "";
    if (paints.at(-1)?.text !== text) paints.push({ text, time });
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}
"""


def test_an_answer_is_painted_as_it_arrives(chat: ChatPage, engine: ScriptedEngine) -> None:
    pieces = ["Grü", "ße, ", "你", "好 ", "👩‍🚀", "!"]
    engine.script = gate = Gate(*pieces)
    chat.page.evaluate(PAINTS)
    chat.ask("Say hello")
    expect(chat.page.get_by_role("button", name="Stop")).to_be_visible()
    shown = ""
    for piece in pieces:
        gate.step()
        shown += piece
        chat.page.wait_for_function("text => paints.at(-1).text === text", arg=shown.strip())
    gate.step()
    chat.expect_state("done")
    painted = chat.page.evaluate("paints")
    assert len({one["time"] for one in painted}) >= len(pieces)
    expect(chat.page.get_by_role("button", name="Send")).to_be_visible()
    expect(chat.question).to_be_focused()


def test_a_burst_is_drawn_once_a_frame(chat: ChatPage, engine: ScriptedEngine) -> None:
    """However many pieces come: drawing each would freeze the page."""
    count = 3000
    texts = b"".join(text_event(f"w{n} ") for n in range(count))
    engine.script = lambda turn: turn.stream(texts, last_events(tokens_out=count))
    chat.page.evaluate(
        """() => {
          window.frames_ = window.draws = 0;
          const tick = () => { frames_ += 1; requestAnimationFrame(tick); };
          requestAnimationFrame(tick);
          new MutationObserver((all) => {
            if (all.some((one) => one.target.closest?.(".answer"))) draws += 1;
          }).observe(document.getElementById("log"), { childList: true, subtree: true });
        }"""
    )
    chat.ask_through("Many words")
    assert chat.answer.inner_text().split() == [f"w{n}" for n in range(count)]
    draws, frames = chat.page.evaluate("[draws, frames_]")
    assert 1 <= draws <= frames + 2  # and the last, which waits for no frame


def test_speed_and_first_token_are_shown(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = gate = Gate("One", " two", " three")
    chat.ask("Count")
    gate.step(4)
    chat.expect_state("done")
    expect(chat.note).to_have_text(
        re.compile(r"^first\sword\safter\s[\d.]+\ss · [\d.,]+\stokens\sa\ssecond · 3\stokens$")
    )
    expect(chat.page.locator("#model")).to_have_text("m")


def test_stop_ends_the_generation(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = gate = Gate("Begun", " never")
    chat.ask("A long story")
    gate.step()
    expect(chat.answer).to_have_text("Begun")
    chat.press("Stop")
    chat.expect_state("stopped")
    turn = engine.turn(0)
    turn.wait_gone()
    assert turn.gone.is_set()
    expect(chat.answer).to_have_text("Begun")
    expect(chat.note).to_have_text("Stopped")
    # what was said belongs to the conversation
    engine.script = lambda turn: turn.say("Fine")
    chat.ask_through("Go on")
    assert asked(questions(engine)[-1]) == [
        ("user", "A long story"),
        ("assistant", "Begun"),
        ("user", "Go on"),
    ]


def test_stop_before_the_first_token(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = Gate()
    chat.ask("Hm")
    turn = engine.turn(0)
    chat.press("Stop")
    turn.wait_gone()
    assert turn.gone.is_set()
    chat.expect_state("stopped")
    engine.script = lambda turn: turn.say("Fine")
    chat.ask_through("Another")
    assert asked(questions(engine)[-1]) == [("user", "Another")]


def ask_five(chat: ChatPage, engine: ScriptedEngine) -> None:
    for number in range(5):
        engine.script = lambda turn, n=number: turn.say(f"a{n}")
        chat.ask_through(f"q{number}")


def test_three_rounds_go_along_as_memory(chat: ChatPage, engine: ScriptedEngine) -> None:
    ask_five(chat, engine)
    sent = [asked(turn) for turn in questions(engine)]
    assert [len(one) for one in sent] == [1, 3, 5, 7, 7]
    assert sent[4] == [
        *(("user", "q1"), ("assistant", "a1")),
        *(("user", "q2"), ("assistant", "a2")),
        *(("user", "q3"), ("assistant", "a3")),
        ("user", "q4"),
    ]


@pytest.mark.parametrize(("rounds", "sizes"), [(0, [1, 1, 1, 1, 1]), (20, [1, 3, 5, 7, 9])])
def test_the_memory_can_be_set(
    chat: ChatPage, engine: ScriptedEngine, rounds: int, sizes: list[int]
) -> None:
    chat.set(rounds=str(rounds))
    ask_five(chat, engine)
    assert [len(asked(turn)) for turn in questions(engine)] == sizes
    chat.open()  # it is remembered
    chat.page.locator("#open-options").click()
    expect(chat.page.locator("#rounds")).to_have_value(str(rounds))


def test_retry_asks_the_last_question_again(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.ask_through("First")
    engine.script = lambda turn: turn.say("Poor")
    chat.ask_through("Second")
    engine.script = lambda turn: turn.say("Better")
    chat.retry()
    expect(chat.answer).to_have_text("Better")
    chat.expect_state("done")
    expect(chat.page.locator(".turn")).to_have_count(2)
    assert asked(questions(engine)[-1]) == asked(questions(engine)[-2])
    expect(chat.page.get_by_role("button", name="Retry")).to_have_count(1)


def test_a_new_chat_forgets(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.ask_through("First")
    engine.script = gate = Gate("Begun")
    chat.ask("Second")
    gate.step()
    expect(chat.answer).to_have_text("Begun")
    chat.press("New chat")
    engine.turn(1).wait_gone()
    expect(chat.page.locator(".turn")).to_have_count(0)
    expect(chat.page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(chat.question).to_be_focused()
    engine.script = lambda turn: turn.say("Fresh")
    chat.ask_through("Third")
    assert asked(questions(engine)[-1]) == [("user", "Third")]


def test_an_example_is_asked(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.proxy.sent += 1
    example = chat.page.locator(".example").first
    text = example.inner_text()
    example.click()
    chat.expect_state("done")
    assert asked(engine.turn(0)) == [("user", text)]
    expect(chat.question).to_be_focused()


CODE = "Look:\n\n```python\ndef f():\n\treturn 'ü' # 你好\n\n```\nDone *it*.\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "device"])
def test_copy(
    proxy: Proxy, engine: ScriptedEngine, open_page: Callable[..., ChatPage], host: str
) -> None:
    """Also where browsers offer no clipboard: plain http to a device in the local network."""
    engine.script = lambda turn: turn.say(*CODE)
    chat = open_page(proxy, host)
    assert chat.page.evaluate("isSecureContext") == (host == "127.0.0.1")
    chat.ask_through("Code, please")
    pasted = []
    for button, place in (("Copy code", ".code"), ("Copy", ".actions")):
        chat.press(button)
        expect(chat.page.locator(place).get_by_role("button", name="Copied")).to_be_visible()
        chat.question.fill("")
        chat.question.press("Control+V")
        pasted.append(chat.question.input_value())
    expect(chat.page.get_by_role("button", name="Copy", exact=True)).to_be_visible()
    assert pasted == ["def f():\n\treturn 'ü' # 你好\n", CODE]


def test_long_questions_and_line_breaks(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.proxy.sent += 1
    one_line = chat.question.bounding_box()
    chat.question.press_sequentially("One")
    chat.question.press("Shift+Enter")
    chat.question.press_sequentially("two")
    two_lines = chat.question.bounding_box()
    assert one_line
    assert two_lines
    assert two_lines["height"] > one_line["height"]
    chat.question.press("Enter")
    chat.expect_state("done")
    assert asked(engine.turn(0)) == [("user", "One\ntwo")]
    expect(chat.question).to_have_value("")


def test_an_empty_question_is_not_asked(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.question.fill("  \n ")
    chat.question.press("Enter")
    chat.press("Send")
    chat.ask_through("Now")
    assert [asked(turn) for turn in questions(engine)] == [[("user", "Now")]]


def test_enter_that_ends_a_word_of_an_input_method_does_not_send(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    client = chat.page.context.new_cdp_session(chat.page)
    client.send(
        "Input.imeSetComposition", {"text": "nihao", "selectionStart": 5, "selectionEnd": 5}
    )
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    client.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    client.send("Input.insertText", {"text": "你好"})
    expect(chat.question).to_have_value("你好")
    expect(chat.page.locator(".turn")).to_have_count(0)
    chat.proxy.sent += 1
    chat.question.press("Enter")
    chat.expect_state("done")
    assert [asked(turn) for turn in questions(engine)] == [[("user", "你好")]]


def test_a_question_typed_meanwhile_is_kept(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = gate = Gate("One")
    chat.ask("First")
    gate.step()
    expect(chat.answer).to_have_text("One")
    chat.question.fill("Second")
    chat.question.press("Enter")
    expect(chat.question).to_have_value("Second")
    gate.step()
    chat.expect_state("done")
    chat.proxy.sent += 1
    chat.question.press("Enter")
    expect(chat.page.locator(".turn")).to_have_count(2)
    assert asked(engine.turn(1))[-1] == ("user", "Second")


def test_with_the_keyboard_only(chat: ChatPage, engine: ScriptedEngine) -> None:
    keys = chat.page.keyboard
    engine.script = gate = Gate("Begun")
    chat.proxy.sent += 2
    keys.type("Tell me")
    keys.press("Enter")
    gate.step()
    expect(chat.answer).to_have_text("Begun")
    keys.press("Escape")
    chat.expect_state("stopped")
    engine.turn(0).wait_gone()
    engine.script = lambda turn: turn.say("Whole `answer`\n\n```\ncode\n```\n")
    for _ in range(3):  # from the question back to the newest answer's buttons
        keys.press("Shift+Tab")
        if focused(chat) == "Retry":
            break
    keys.press("Enter")
    chat.expect_state("done")
    expect(chat.question).to_be_focused()
    order = []
    for _ in range(9):
        keys.press("Shift+Tab")
        order.append(focused(chat))
    assert order == [
        *("Retry", "Copy"),
        *("code", "Copy code"),
        *("Settings", "New chat", "Skip to the question"),
        *(order[7], order[8]),  # the browser's own
    ]
    chat.page.locator(".skip").focus()
    keys.press("Enter")
    expect(chat.question).to_be_focused()


def focused(chat: ChatPage) -> str:
    script = "(document.activeElement.innerText || document.activeElement.tagName).trim()"
    return str(chat.page.evaluate(script))
