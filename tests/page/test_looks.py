"""For every eye, hand and ear: axe, narrow and dark screens, the live region, focus."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.page import answers
from tests.page.chat_page import ChatPage, Gate
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine

OpenPage = Callable[..., ChatPage]

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "has_touch": True,
    "is_mobile": True,
}
NARROW: dict[str, Any] = {"viewport": {"width": 320, "height": 568}}
ZOOMED: dict[str, Any] = {"viewport": {"width": 640, "height": 360}, "device_scale_factor": 2}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
DARK: dict[str, Any] = {"color_scheme": "dark"}


def violations(chat: ChatPage) -> list[str]:
    """What axe finds, of any weight."""
    found = Axe().run(chat.page).response["violations"]
    return [
        f"{one['impact']} {one['id']}: {node['html'][:200]}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(
    "options", [DESKTOP, PHONE, DESKTOP | DARK, PHONE | DARK | {"locale": "zh-CN"}]
)
def test_axe_finds_nothing(
    proxy: Proxy, engine: ScriptedEngine, open_page: OpenPage, options: dict[str, Any]
) -> None:
    chat = open_page(proxy, **options)
    assert violations(chat) == []
    engine.script = lambda turn: turn.say(answers.ENGLISH, answers.WIDE)
    chat.ask_through("Everything, please")
    assert violations(chat) == []
    engine.script = gate = Gate("Writing")
    chat.ask("Slowly")
    gate.step()
    expect(chat.answer).to_have_text("Writing")
    assert violations(chat) == []
    chat.page.keyboard.press("Escape")
    chat.expect_state("stopped")
    engine.script = lambda turn: turn.plain(500, b"{}")
    chat.ask("And an error")
    chat.expect_state("failed")
    assert violations(chat) == []
    chat.page.locator("#open-options").click()
    chat.page.locator("#rounds").fill("99")
    chat.page.locator("#save").click()
    expect(chat.page.get_by_role("alert")).to_be_visible()
    assert violations(chat) == []


@pytest.mark.parametrize("options", [NARROW, PHONE, ZOOMED, DESKTOP])
def test_nothing_makes_the_page_scroll_sideways(
    proxy: Proxy, engine: ScriptedEngine, open_page: OpenPage, options: dict[str, Any]
) -> None:
    chat = open_page(proxy, **options)
    assert not chat.scrolls_sideways()
    engine.script = lambda turn: turn.say(answers.WIDE)
    chat.ask_through("W" * 300)
    assert not chat.scrolls_sideways()
    for inside in (".code pre", ".wide"):
        assert chat.answer.locator(inside).evaluate("one => (one.scrollLeft = 50, one.scrollLeft)")
    chat.page.locator("#open-options").click()
    dialog = chat.page.locator("#options")
    assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth")
    chat.page.locator("#save").scroll_into_view_if_needed()
    chat.press("Save")
    expect(chat.question).to_be_in_viewport()
    small = chat.page.evaluate(
        """() => [...document.querySelectorAll("button")].filter((one) => {
          const box = one.getBoundingClientRect();
          return one.checkVisibility() && Math.min(box.width, box.height) < 24;
        }).map((one) => one.outerHTML)"""
    )
    assert small == []


def luminance(chat: ChatPage) -> float:
    """Of the page's ground, 0…255."""
    color = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, color.strip("rgb()").split(","))) / 3


def test_light_and_dark(proxy: Proxy, open_page: OpenPage) -> None:
    chat = open_page(proxy, color_scheme="light")
    assert luminance(chat) > 230
    chat.page.emulate_media(color_scheme="dark")
    assert luminance(chat) < 40


def test_a_screen_reader_hears_states_and_the_whole_answer_once(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    pieces = ["Two ", "**strong** ", "words\n\n", "```\ncode\n```\n"]
    engine.script = gate = Gate(*pieces)
    chat.ask("Speak")
    gate.step(len(pieces) + 1)
    chat.expect_state("done")
    assert chat.spoken() == [
        "Waiting for the server",
        "Writing",
        "Answer: Two strong words\ncode",
    ]
    log = chat.page.get_by_role("log", name="Conversation")
    expect(log).to_have_attribute("aria-live", "off")  # it would read every token
    expect(chat.page.get_by_role("heading", name="Model")).to_have_count(1)


def test_nothing_moves_where_motion_is_not_wanted(
    proxy: Proxy, engine: ScriptedEngine, open_page: OpenPage
) -> None:
    engine.script = Gate()
    for motion, moving in (("reduce", 0), ("no-preference", 1)):
        chat = open_page(proxy, reduced_motion=motion)
        chat.ask("Hm")
        engine.turn(0)
        expect(chat.page.locator(".turn")).to_be_visible()
        assert chat.page.evaluate("document.getAnimations().length") == moving
        chat.press("Stop")
        chat.expect_state("stopped")


def test_the_direction_of_a_text_is_its_own(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = lambda turn: turn.say("مرحبا بالعالم\n\n```\nx = 1\n```\n")
    chat.ask_through("Hello in Arabic")
    direction = "one => getComputedStyle(one).direction"
    assert chat.answer.evaluate(direction) == "rtl"
    assert chat.answer.locator("pre").evaluate(direction) == "ltr"
    assert chat.page.locator(".question").evaluate(direction) == "ltr"


def test_every_stop_of_the_focus_can_be_seen(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.script = lambda turn: turn.say(answers.ENGLISH)
    chat.ask_through("Everything, please")
    seen = []
    for _ in range(20):
        chat.page.keyboard.press("Shift+Tab")
        seen.append(
            chat.page.evaluate(
                """() => {
                  const one = document.activeElement;
                  if (one === document.body) return null;
                  const { outlineStyle, outlineWidth } = getComputedStyle(one);
                  const box = one.getBoundingClientRect();
                  const shown = box.bottom > 0 && box.top < innerHeight;
                  return [one.className || one.id, outlineStyle, outlineWidth, shown];
                }"""
            )
        )
        if seen[-1] is None:
            break
    assert len([one for one in seen if one]) >= 8
    for one in seen:
        assert one is None or one[1:] == ["solid", "2px", True]


def test_the_reader_stays_where_they_are(chat: ChatPage, engine: ScriptedEngine) -> None:
    pieces = [f"Paragraph {n}\n\n" * 10 for n in range(6)]
    engine.script = gate = Gate(*pieces)
    chat.ask("A long one")
    newest = chat.page.get_by_role("button", name="To the newest")
    at_end = "document.documentElement.scrollHeight - innerHeight - scrollY < 64"
    for number in range(3):
        gate.step()
        expect(chat.answer).to_contain_text(f"Paragraph {number}")
        chat.page.wait_for_function(at_end)
    expect(newest).to_be_hidden()
    chat.page.mouse.move(400, 300)
    chat.page.mouse.wheel(0, -400)
    expect(newest).to_be_visible()
    before = chat.page.evaluate("scrollY")
    gate.step()
    expect(chat.answer).to_contain_text("Paragraph 3")
    assert chat.page.evaluate("scrollY") == before
    newest.click()
    chat.page.wait_for_function(at_end)
    gate.step()
    expect(chat.answer).to_contain_text("Paragraph 4")
    chat.page.wait_for_function(at_end)
    gate.step(2)
    chat.expect_state("done")
    expect(newest).to_be_hidden()


@pytest.fixture
def without_scripts(browser: Browser, proxy: Proxy) -> Iterator[str]:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{proxy.port}/")
    yield page.locator("body").inner_text()
    context.close()


def test_without_scripts_the_page_says_what_it_needs(without_scripts: str) -> None:
    assert "This page needs JavaScript." in without_scripts
