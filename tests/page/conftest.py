"""One browser, and a tab with the page for each test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.page.browser import chromium
from tests.page.chat_page import ChatPage
from tests.proxy.conftest import _one_engine, _one_proxy, engine, keys, proxy, start_proxy
from tests.proxy.proxy_process import Proxy

__all__ = ["_one_engine", "_one_proxy", "engine", "keys", "proxy", "start_proxy"]

expect.set_options(timeout=10_000)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Its event loop would be in the way of other tests: it ends with this package."""
    with chromium() as one:
        yield one


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., ChatPage]]:
    """Open the page of a proxy in a tab of its own; options are Playwright's for a context."""
    contexts: list[BrowserContext] = []
    pages: list[ChatPage] = []

    def start(proxy: Proxy, host: str = "127.0.0.1", **options: Any) -> ChatPage:
        context = browser.new_context(**{"locale": "en-GB", **options})
        contexts.append(context)
        pages.append(ChatPage(context.new_page(), proxy))
        return pages[-1].open(host)

    yield start
    for context in contexts:
        context.close()
    for page in pages:
        assert page.trouble == []


@pytest.fixture
def chat(proxy: Proxy, open_page: Callable[..., ChatPage]) -> ChatPage:
    """The page of the proxy with one slot."""
    return open_page(proxy)
