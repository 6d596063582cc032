"""Language, memory and key: entered, kept in this browser, and sent nowhere else."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.chat_page import ChatPage
from tests.proxy.key_file import KeyFile, token
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine

OpenPage = Callable[..., ChatPage]


@pytest.fixture
def locked(start_proxy: Callable[..., Proxy], keys: KeyFile) -> Proxy:
    """A proxy that asks for keys: "till" may ask freely, "bench" once a minute."""
    once = {"name": "bench", "rate_per_minute": 1}
    return start_proxy(api_keys_file=keys.write("till", once))


def keeps_secret(chat: ChatPage, secret: str) -> None:
    """The key is in the store and in the header, and in no other place."""
    assert chat.stored()["key"] == secret
    assert secret not in chat.page.content()
    assert chat.page.locator("#key").input_value() == ""
    assert secret not in chat.page.url
    assert not any(secret in url for url in chat.requests)
    assert not any(secret in text for text in (*chat.console, *chat.spoken()))
    assert chat.page.context.cookies() == []


def test_a_key_is_asked_for_and_the_question_goes_on(
    locked: Proxy, engine: ScriptedEngine, open_page: OpenPage
) -> None:
    chat = open_page(locked)
    sent: list[str | None] = []
    chat.page.on("request", lambda one: sent.append(one.headers.get("authorization")))
    chat.ask("Who am I?")
    dialog = chat.page.get_by_role("dialog", name="Settings")
    expect(dialog).to_be_visible()
    expect(dialog).to_contain_text("This server asks for a key.")
    key = chat.page.get_by_label("Key", exact=True)
    expect(key).to_be_focused()
    expect(key).to_have_attribute("type", "password")
    chat.page.keyboard.type(token("till"))
    chat.press("Show")
    expect(key).to_have_attribute("type", "text")
    chat.press("Hide")
    expect(key).to_have_attribute("type", "password")
    assert engine.turns == []
    key.press("Enter")
    expect(dialog).to_be_hidden()
    chat.expect_state("done")
    expect(chat.page.locator(".turn")).to_have_count(1)
    assert sent == [None, f"Bearer {token('till')}"]
    assert token("till") not in str(engine.turn(0).headers)
    keeps_secret(chat, token("till"))
    chat.open()
    chat.ask_through("Again")
    keeps_secret(chat, token("till"))


def test_a_key_that_is_refused(locked: Proxy, open_page: OpenPage) -> None:
    chat = open_page(locked, locale="zh-CN")
    chat.set(key="edge-nobody-key")
    chat.ask("我是谁？")
    dialog = chat.page.get_by_role("dialog", name="设置")
    expect(dialog).to_contain_text("服务器不接受已保存的密钥。")
    chat.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(chat.note).to_have_text("服务器不接受该密钥。")
    keeps_secret(chat, "edge-nobody-key")
    chat.press("输入密钥")
    chat.page.get_by_label("密钥", exact=True).fill(token("till"))
    chat.press("保存")
    chat.expect_state("done")
    chat.set(key="")
    assert chat.stored()["key"] == ""
    chat.ask("还在吗？")
    expect(dialog).to_contain_text("此服务器需要密钥。")


def test_a_key_that_has_used_up_its_rate(locked: Proxy, open_page: OpenPage) -> None:
    chat = open_page(locked)
    chat.set(key=token("bench"))
    chat.ask_through("One")
    chat.ask("Two")
    expect(chat.note).to_have_text("This key has used up its questions for now.")
    expect(chat.more).to_contain_text("You can try again in")
    assert token("bench") not in chat.page.content()


def test_a_key_in_letters_that_no_header_can_hold(chat: ChatPage) -> None:
    chat.page.locator("#open-options").click()
    for wrong in ("ключ", "two words", "a\u2028b"):
        chat.page.locator("#key").fill(wrong)
        chat.press("Save")
        expect(chat.page.get_by_role("alert")).to_have_text(
            "A key is one word of plain letters, digits and signs."
        )
        expect(chat.page.locator("#key")).to_be_focused()
    chat.page.locator("#key").fill("  plain  ")
    chat.press("Save")
    assert chat.stored()["key"] == "plain"


@pytest.mark.parametrize("wrong", ["-1", "21", "1.5", ""])
def test_a_memory_that_cannot_be(chat: ChatPage, wrong: str) -> None:
    chat.page.locator("#open-options").click()
    chat.page.locator("#rounds").fill(wrong)
    chat.press("Save")
    expect(chat.page.get_by_role("alert")).to_have_text("A whole number from 0 to 20.")
    chat.press("Cancel")
    assert chat.page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize(
    ("locale", "tag", "send"),
    [
        ("en-US", "en", "Send"),
        ("zh-CN", "zh-CN", "发送"),
        ("zh-TW", "zh-CN", "发送"),
        ("fr-FR", "en", "Send"),
    ],
)
def test_the_language_follows_the_browser(
    proxy: Proxy, open_page: OpenPage, locale: str, tag: str, send: str
) -> None:
    chat = open_page(proxy, locale=locale)
    expect(chat.page.locator("html")).to_have_attribute("lang", tag)
    expect(chat.page.get_by_role("button", name=send)).to_be_visible()


def test_the_language_can_be_chosen_at_any_time(proxy: Proxy, open_page: OpenPage) -> None:
    chat = open_page(proxy, locale="en-GB")
    chat.ask_through("Hello")
    chat.set(language="zh")
    expect(chat.page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(chat.note).to_contain_text("首字用时")
    expect(chat.page.get_by_role("button", name="重试")).to_be_visible()
    assert chat.page.title() == "对话"
    shown = " ".join(chat.page.locator(":is(header, .foot, #ask-form, .skip)").all_inner_texts())
    assert set(re.findall(r"[A-Za-z]+", shown)) == {"m", "Enter", "Shift", "Esc"}
    chat.open()
    expect(chat.page.locator("html")).to_have_attribute("lang", "zh-CN")
    chat.set(language="auto")
    expect(chat.page.locator("html")).to_have_attribute("lang", "en")


def test_both_languages_say_everything(chat: ChatPage) -> None:
    shapes = chat.page.evaluate(
        """async () => {
          const { dictionaries } = await import("/page/words.js");
          const shape = (value) =>
            typeof value === "function" ? `f${value.length}`
              : Array.isArray(value) ? value.length
                : typeof value === "object" ? Object.fromEntries(
                    Object.entries(value).map(([k, v]) => [k, shape(v)]))
                  : typeof value;
          const used = [...document.querySelectorAll("*")].flatMap((one) => [
            one.dataset?.say, one.dataset?.sayLabel, one.dataset?.sayHint,
          ]).filter(Boolean);
          return [shape(dictionaries.en), shape(dictionaries.zh), used];
        }"""
    )
    english, chinese, used = shapes
    assert english == chinese
    assert set(used) <= set(english)
    assert english["failures"]["unknown"] == "f1"


def test_a_store_that_holds_rubbish_or_is_closed(proxy: Proxy, open_page: OpenPage) -> None:
    chat = open_page(proxy)
    for rubbish in (
        "no JSON",
        "null",
        '{"rounds": 999, "language": "xx", "key": 7}',
        "[]",
        '{"key": "ключ"}',
        '{"key": "a\\nb"}',
    ):
        chat.page.evaluate("text => localStorage.setItem('edge-llm', text)", rubbish)
        chat.open()
        chat.page.locator("#open-options").click()
        expect(chat.page.locator("#rounds")).to_have_value("3")
        expect(chat.page.locator("#language")).to_have_value("auto")
        expect(chat.page.locator("#key")).to_have_value("")
    chat.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('closed'); } })"
    )
    chat.open()
    chat.set(rounds="0")
    chat.ask_through("Still here?")


def test_another_tab_of_the_same_browser(proxy: Proxy, open_page: OpenPage) -> None:
    chat = open_page(proxy)
    second = ChatPage(chat.page.context.new_page(), proxy).open()
    second.set(language="zh", key="edge-till-key")
    expect(chat.page.locator("html")).to_have_attribute("lang", "zh-CN")
    assert json.loads(chat.page.evaluate("localStorage.getItem('edge-llm')")) == {
        "language": "zh",
        "rounds": 3,
        "key": "edge-till-key",
    }
