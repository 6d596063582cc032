"""Writes docs/images/page-*.png: `make screenshots`. The engine is scripted, its pace as well."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.page import answers
from tests.page.browser import chromium
from tests.page.chat_page import ChatPage
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, chunk_event, last_events

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 150_000
MODEL = "qwen2.5-0.5b-instruct-q4_k_m"
FIRST_S, TOKEN_S = 0.4, 0.025
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "has_touch": True,
    "is_mobile": True,
}


def paced(text: str) -> Callable[[Turn], None]:
    """An engine that says `text` as a small device would."""
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]

    def script(turn: Turn) -> None:
        turn.begin()
        time.sleep(FIRST_S)
        for piece in pieces:
            choice = {"finish_reason": None, "index": 0, "delta": {"content": piece}}
            turn.part(chunk_event(model=MODEL, choices=[choice]))
            time.sleep(TOKEN_S)
        turn.part(last_events(tokens_out=len(pieces)).replace(b'"m"', f'"{MODEL}"'.encode()))
        turn.end()

    return script


def write(name: str, chat: ChatPage) -> None:
    """The tab as it is now."""
    path = IMAGES / f"page-{name}.png"
    chat.page.screenshot(path=path, caret="hide", animations="disabled")
    size = path.stat().st_size
    assert size < MOST_BYTES, f"{path} has {size} bytes: show less"
    print(f"{path.relative_to(IMAGES.parents[1])}: {size // 1000} kB")


def shoot(browser: Browser, proxy: Proxy, engine: ScriptedEngine) -> None:
    """All of them."""

    def tab(**options: Any) -> ChatPage:
        return ChatPage(browser.new_context(**options).new_page(), proxy).open()

    engine.script = paced(answers.ENGLISH)
    chat = tab(locale="en-GB", viewport={"width": 1000, "height": 860})
    chat.ask_through("Explain recursion with a short example in Python")
    write("light", chat)
    chat = tab(locale="en-GB", color_scheme="dark", **PHONE)
    chat.ask_through("Explain recursion with a short example in Python")
    write("dark-phone", chat)
    engine.script = paced(answers.CHINESE)
    chat = tab(locale="zh-CN", viewport={"width": 1000, "height": 760})
    chat.ask_through("用一段简短的 Python 代码解释递归")
    write("chinese", chat)


def main() -> int:
    """Raises: AssertionError: an image is too large."""
    if not subprocess.check_output(["fc-list", ":lang=zh"]):
        print("no font here has Chinese letters: install fonts-noto-cjk", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    engine = ScriptedEngine()
    proxy = Proxy(engine.url, slots=1)
    try:
        with chromium() as browser:
            shoot(browser, proxy, engine)
    finally:
        proxy.stop()
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
