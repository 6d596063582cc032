"""A scripted engine and proxies in front of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proxy_process import Proxy
from scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    one = ScriptedEngine()
    yield one
    one.close()


@pytest.fixture
def start_proxy(engine: ScriptedEngine) -> Iterator[Callable[..., Proxy]]:
    """Start a proxy with settings; it is stopped, and its stderr checked, at the end."""
    started: list[Proxy] = []

    def start(**settings: Any) -> Proxy:
        started.append(Proxy(engine.url, **{"drain_s": 0, **settings}))
        return started[-1]

    yield start
    for proxy in started:
        errors = proxy.stop()
        proxy.listener.close()
        assert "Traceback" not in errors, errors


@pytest.fixture
def proxy(start_proxy: Callable[..., Proxy]) -> Proxy:
    """One slot, four may wait."""
    return start_proxy(slots=1, queue_limit=4)
