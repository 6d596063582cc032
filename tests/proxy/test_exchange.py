"""What the wire tests would have to wait long for: a body that never ends."""

import asyncio
import json
from typing import Any

import pytest
from chat_proxy import exchange
from chat_proxy.app import create_app
from chat_proxy.config import Settings


def test_a_body_that_does_not_come_is_408(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchange, "_BODY_S", 0.01)
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        app = create_app(Settings())
        scope = {"type": "http", "method": "POST", "path": "/chat", "headers": []}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
        await asyncio.wait_for(app(scope, receive, send), 10)
        assert app.state.service.open == set()

    asyncio.run(run())
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["type"] == "body_timeout"
    assert "status=408" in capsys.readouterr().out
