"""A scripted engine and proxies in front of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.key_file import KeyFile
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine


@pytest.fixture(scope="session")
def _one_engine() -> Iterator[ScriptedEngine]:
    one = ScriptedEngine()
    yield one
    one.close()


@pytest.fixture
def engine(_one_engine: ScriptedEngine) -> ScriptedEngine:
    """An engine that answers "Hello there", until a test gives it another script."""
    _one_engine.reset()
    return _one_engine


@pytest.fixture
def start_proxy(engine: ScriptedEngine) -> Iterator[Callable[..., Proxy]]:
    """Start a proxy with settings; it is stopped, and its stderr checked, at the end."""
    started: list[Proxy] = []

    def start(**settings: Any) -> Proxy:
        started.append(Proxy(engine.url, **{"drain_s": 0, **settings}))
        return started[-1]

    yield start
    for proxy in started:
        stop(proxy)


@pytest.fixture(scope="session")
def _one_proxy(_one_engine: ScriptedEngine) -> Iterator[Proxy]:
    one = Proxy(_one_engine.url, slots=1, queue_limit=4, drain_s=0)
    yield one
    stop(one)


@pytest.fixture
def proxy(_one_proxy: Proxy, engine: ScriptedEngine) -> Iterator[Proxy]:
    """One slot, four may wait. It lives on, so each test shows that nothing was left behind."""
    yield _one_proxy
    _one_proxy.settle()


def stop(proxy: Proxy) -> None:
    errors = proxy.stop()
    proxy.listener.close()
    assert "Traceback" not in errors, errors
    assert "ASGI callable" not in errors, errors


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """Write a file of keys: `keys("till", {"name": "bench", "rate_per_minute": 1})`."""
    return KeyFile(tmp_path / "api-keys")
