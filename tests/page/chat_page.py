"""The page as a person uses it."""

import json
import threading
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event

WAIT_S = 10.0

WATCH = """
addEventListener("securitypolicyviolation", (event) => console.error("policy " + event.blockedURI));
window.spoken = [];
document.addEventListener("DOMContentLoaded", () => {
  const region = document.querySelector("[role=status]");
  new MutationObserver(() => { if (region.textContent) spoken.push(region.textContent); })
    .observe(region, { childList: true, characterData: true, subtree: true });
});
"""
"""Runs before the page's scripts: notes what a screen reader is told."""


class ChatPage:
    """One tab with the page in it."""

    def __init__(self, page: Page, proxy: Proxy) -> None:
        self.page = page
        self.proxy = proxy
        self.trouble: list[str] = []  # what the console got, beyond refused requests
        self.console: list[str] = []
        self.requests: list[str] = []
        page.add_init_script(WATCH)
        page.on("console", lambda message: self._console(message.text))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", lambda request: self._lost(request.url, request.failure))
        page.on("dialog", lambda dialog: self.trouble.append(f"dialog {dialog.message}"))

    def _console(self, text: str) -> None:
        self.console.append(text)
        # the browser itself reports each answer that is an error
        if not text.startswith("Failed to load resource"):
            self.trouble.append(text)

    def _lost(self, url: str, why: str | None) -> None:
        if not url.endswith("/chat"):  # those are stopped and broken on purpose
            self.trouble.append(f"{url}: {why}")

    def open(self, host: str = "127.0.0.1") -> "ChatPage":
        self.page.goto(f"http://{host}:{self.proxy.port}/")
        expect(self.question).to_be_focused()
        return self

    @property
    def question(self) -> Locator:
        return self.page.locator("#ask")

    @property
    def answer(self) -> Locator:
        """The newest answer."""
        return self.page.locator(".turn").last.locator(".answer")

    @property
    def note(self) -> Locator:
        return self.page.locator(".turn").last.locator(".note")

    @property
    def more(self) -> Locator:
        return self.page.locator(".turn").last.locator(".more")

    def ask(self, text: str) -> None:
        self.proxy.sent += 1
        self.question.fill(text)
        self.question.press("Enter")

    def ask_through(self, text: str) -> None:
        """Ask, and wait for the end of the answer."""
        self.ask(text)
        self.expect_state("done")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def retry(self) -> None:
        self.proxy.sent += 1
        self.press("Retry")

    def expect_state(self, name: str) -> None:
        expect(self.page.locator(".turn").last).to_have_attribute("data-state", name)

    def set(self, **values: str) -> None:
        """Change settings by their dialog: language, rounds, key."""
        self.page.locator("#open-options").click()
        for name, value in values.items():
            field = self.page.locator(f"#{name}")
            if name == "language":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.locator("#save").click()
        expect(self.page.locator("#options")).to_be_hidden()

    def spoken(self) -> list[str]:
        return self.page.evaluate("spoken")  # type: ignore[no-any-return]

    def stored(self) -> dict[str, Any]:
        return json.loads(self.page.evaluate("localStorage.getItem('edge-llm')"))  # type: ignore[no-any-return]

    def scrolls_sideways(self) -> bool:
        script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.page.evaluate(script))


class Gate:
    """A script of the engine that says one piece each time a test allows it."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self._steps = threading.Semaphore(0)

    def __call__(self, turn: Turn) -> None:
        if not asks(turn):
            turn.plain(404, b"{}")
            return
        turn.begin()
        turn.part(text_event(None))
        for piece in self._pieces:
            if not self._steps.acquire(timeout=WAIT_S):
                return
            turn.part(text_event(piece))
        if self._steps.acquire(timeout=WAIT_S):
            turn.part(last_events(tokens_out=len(self._pieces)))
            turn.end()

    def step(self, count: int = 1) -> None:
        """Let `count` more pieces out; one more than there are pieces ends the answer."""
        self._steps.release(count)


def asked(turn: Turn) -> list[tuple[str, str]]:
    """The messages that the engine got, without the server's own system prompt."""
    return [
        (one["role"], one["content"]) for one in turn.json["messages"] if one["role"] != "system"
    ]


def asks(turn: Turn) -> bool:
    """Whether the engine is to answer; of a long conversation it is asked the tokens first."""
    return turn.path.endswith("/completions")


def questions(engine: ScriptedEngine) -> list[Turn]:
    """What the engine was asked to answer."""
    return [turn for turn in engine.turns if asks(turn)]
