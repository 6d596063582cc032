"""The distribution's Chromium, without a display and without a thought of its own."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGS = (
    "--headless",
    "--no-sandbox",  # it opens nothing but our own page, and root has no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A name of the local network: browsers give plain http less than they give localhost.
    "--host-resolver-rules=MAP device 127.0.0.1",
)


def executable() -> str:
    """The browser's path.

    Raises:
        FileNotFoundError: there is none.
    """
    wanted = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else NAMES
    for name in wanted:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        f"no {' or '.join(wanted)} here for the page's tests: run scripts/browser (it installs "
        "Debian's chromium), or set CHROMIUM to a Chromium or Chrome"
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(ARGS))
        yield browser
        browser.close()
