"""No answer becomes more than text in a few harmless elements, in whatever pieces it comes."""

import hashlib
import random
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page import nasty
from tests.page.chat_page import ChatPage
from tests.proxy.proxy_process import FILES
from tests.proxy.scripted_engine import ScriptedEngine

VENDOR = FILES / "chat_proxy" / "page" / "vendor"

ALLOWED = {
    *("p", "br", "hr", "em", "strong", "s", "a", "code", "pre", "div", "span", "button"),
    *("ul", "ol", "li", "blockquote", "h3", "h4", "h5", "h6"),
    *("table", "thead", "tbody", "tr", "th", "td", "svg", "use"),
}
ATTRIBUTES = {
    *("class", "tabindex", "dir", "translate", "type", "aria-hidden", "data-say", "data-align"),
    *("href", "rel", "target", "start", "aria-label", "role"),
}

SURVEY = """
(root) => [...root.querySelectorAll("*")].map((one) => ({
  tag: one.localName,
  attributes: Object.fromEntries([...one.attributes].map((a) => [a.name, a.value])),
}))
"""

# Draws a text whole, and in pieces with a drawing after each; tells whether both look the same.
COMPARE = """
async ([texts, sizes]) => {
  const { Rendering } = await import("/page/markdown.js");
  const block = (text, language) => {
    const node = document.createElement("div");
    const code = document.createElement("code");
    code.textContent = text;
    node.title = language;
    node.append(code);
    return { node, code };
  };
  const drawn = (pieces, each) => {
    const place = document.createElement("div");
    const rendering = new Rendering(place, block);
    for (const piece of pieces) {
      rendering.append(piece);
      if (each) rendering.draw();
    }
    rendering.finish();
    place.normalize();
    return place;
  };
  const different = [];
  for (const text of texts) {
    const whole = drawn([text], false);
    for (const size of sizes) {
      const pieces = [];
      for (let at = 0; at < text.length; at += size) pieces.push(text.slice(at, at + size));
      const split = drawn(pieces, true);
      if (!split.isEqualNode(whole)) {
        different.push([text, size, whole.innerHTML, split.innerHTML]);
      }
    }
  }
  return different;
}
"""


def odd_pieces(text: str, seed: str) -> list[str]:
    """The text, cut at random places."""
    rng = random.Random(seed)
    pieces = []
    while text:
        size = rng.choice((1, 1, 2, 3, 5, 40))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def inert(chat: ChatPage) -> list[dict[str, Any]]:
    """The elements of the answer, which are all of the harmless kinds; its links."""
    elements: list[dict[str, Any]] = chat.answer.evaluate(SURVEY)
    for one in elements:
        assert one["tag"] in ALLOWED
        assert set(one["attributes"]) <= ATTRIBUTES
    links = [one["attributes"] for one in elements if one["tag"] == "a"]
    for link in links:
        assert re.match(r"(https?://|mailto:)[^\s\"<>]+$", link["href"])
        assert link["rel"] == "noopener noreferrer"
        assert link["target"] == "_blank"
    return links


def test_markup_stays_inert(chat: ChatPage, engine: ScriptedEngine) -> None:
    """All in one conversation: `trouble` has scripts that ran and policies that were broken."""
    for name, text in (nasty.MARKUP | nasty.LINKS).items():
        engine.script = lambda turn, t=text, n=name: turn.say(*odd_pieces(t, n))
        chat.ask_through(name)
        inert(chat)
        chat.page.evaluate("new Promise((done) => requestAnimationFrame(done))")
        assert chat.trouble == []
    for name, text in nasty.LINKS.items():
        turn = chat.page.locator(".turn").filter(has=chat.page.get_by_text(name, exact=True))
        for link in turn.locator(".answer a").all():
            assert re.match(r"https://(ok|evil)\.example/", link.get_attribute("href") or ""), text
    home = f"http://127.0.0.1:{chat.proxy.port}/"
    assert all(url.startswith(home) for url in chat.requests)
    assert chat.page.evaluate("typeof log.append + ask.tagName + document.forms.length") == (
        "functionTEXTAREA2"
    )


@pytest.mark.parametrize("name", ["script", "img onerror", "entities", "in code"])
def test_markup_is_shown_as_it_was_written(
    chat: ChatPage, engine: ScriptedEngine, name: str
) -> None:
    engine.script = lambda turn: turn.say(*nasty.MARKUP[name])
    chat.ask_through("Show me")
    expect(chat.answer).to_contain_text("alert(1)")
    expect(chat.answer).to_contain_text("<")


def test_a_question_is_text(chat: ChatPage) -> None:
    question = "<img src=x onerror=alert(1)> **not bold**"
    chat.ask_through(question)
    expect(chat.page.locator(".question")).to_have_text(question)


def test_the_policy_would_stop_what_came_through(chat: ChatPage) -> None:
    """Were there a hole, the browser itself would refuse: no markup from strings, no inline."""
    refused = chat.page.evaluate(
        """() => {
          const tried = [
            () => { document.body.innerHTML = "<img src=x onerror=alert(1)>"; },
            () => { document.createElement("script").textContent = "alert(1)"; },
            () => trustedTypes.createPolicy("mine", { createHTML: (text) => text }),
            () => new DOMParser().parseFromString("<p>", "text/html"),
          ];
          return tried.map((one) => { try { one(); return null; } catch (e) { return e.name; } });
        }"""
    )
    assert refused == ["TypeError"] * 4
    chat.page.evaluate(
        """() => {
          const frame = document.createElement("a");
          frame.href = "javascript:alert(1)";
          document.body.append(frame);
          frame.click();
          const image = new Image();
          image.src = "https://elsewhere.example/x.png";
        }"""
    )
    chat.page.wait_for_function("true")
    expect(chat.page.locator("#ask")).to_be_visible()
    said = chat.trouble
    assert any("TrustedHTML" in one for one in said)
    assert any("javascript:" in one or "inline" in one for one in said)
    assert any("elsewhere.example" in one for one in said)
    assert not any(one.startswith("dialog") for one in said)
    said.clear()


def test_links_are_made_of_addresses(chat: ChatPage, engine: ScriptedEngine) -> None:
    text = "[docs](https://ok.example/a?b=c) <https://ok.example/> https://ok.example/x. "
    engine.script = lambda turn: turn.say(text, "me@ok.example [mail](mailto:me@ok.example)")
    chat.ask_through("Where?")
    assert [link["href"] for link in inert(chat)] == [
        "https://ok.example/a?b=c",
        "https://ok.example/",
        "https://ok.example/x",
        "mailto:me@ok.example",
    ]


def test_pieces_make_what_the_whole_makes(chat: ChatPage) -> None:
    texts = [text for text in nasty.ALL.values() if len(text) < 3000]
    assert chat.page.evaluate(COMPARE, [texts, [1, 2, 3, 7, 64]]) == []
    long = [text for text in nasty.ALL.values() if len(text) >= 3000]
    assert chat.page.evaluate(COMPARE, [long, [997]]) == []


def test_pieces_make_what_the_whole_makes_of_anything(chat: ChatPage) -> None:
    rng = random.Random(3)
    parts = [
        *("a", "b c", "\n", "\n\n", "    ", " ", "- ", "1. ", "2) ", "> ", "# ", "***", "---"),
        *("===", "```", "```js\n", "~~~", "`", "**", "_", "|", "|-|-|\n", "\\", "  \n", "\t"),
        *("[x]", "(https://ok.example)", "[x]: https://ok.example\n", "<b>", "&amp;", "你好"),
        *("x\n-", "\n#"),
    ]
    texts = ["".join(rng.choices(parts, k=rng.randint(4, 30))) for _ in range(600)]
    assert chat.page.evaluate(COMPARE, [texts, [1, 5]]) == []


def test_what_is_finished_is_not_read_again(chat: ChatPage) -> None:
    """The work for an answer grows with its length, not with its square."""
    read, length = chat.page.evaluate(
        """async () => {
          const { Rendering } = await import("/page/markdown.js");
          const rendering = new Rendering(document.createElement("div"), () => null);
          let read = 0;
          for (let n = 0; n < 2000; n += 1) {
            rendering.append(`Paragraph **${n}** of a long answer, with some more words.\\n\\n`);
            rendering.draw();
            read += rendering.text.length - rendering.kept;
          }
          return [read, rendering.text.length];
        }"""
    )
    assert read < 4 * length


def test_a_code_block_that_grows_keeps_its_place(chat: ChatPage, engine: ScriptedEngine) -> None:
    """It is scrolled sideways or marked while more lines come."""
    same = chat.page.evaluate(
        """async () => {
          const { Rendering } = await import("/page/markdown.js");
          const place = document.createElement("div");
          const code = document.createElement("code");
          const rendering = new Rendering(place, (text) => {
            code.textContent = text;
            return { node: code, code };
          });
          rendering.append("```\\nfirst\\nsec");
          rendering.draw();
          const before = code.firstChild;
          rendering.append("ond\\nthird");
          rendering.draw();
          return [before === place.firstChild.firstChild, code.textContent];
        }"""
    )
    assert same == [True, "first\nsecond\nthird"]


def test_what_is_vendored_is_what_its_table_says() -> None:
    rows = re.findall(
        r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$", (VENDOR / "README.md").read_text(), re.M
    )
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.suffix not in (".md", ".txt")
    }
    assert dict(rows) == sums
