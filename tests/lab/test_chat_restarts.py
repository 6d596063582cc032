"""Engine and proxy restart under clients, with real systemd: nobody who waits notices."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import APIError, OpenAI

from tests.lab.chat_host import ChatHost, await_true, hold

pytestmark = [pytest.mark.timeout(600)]

WAITING = 20


@pytest.mark.parametrize(
    "how", ["systemctl restart llama-server", "systemctl kill --signal=KILL llama-server"]
)
def test_waiting_clients_do_not_notice_an_engine_restart(chat: ChatHost, how: str) -> None:
    before = chat.main_pid("llama-server")
    held = chat.post("/v1/completions", hold(0))
    assert held.block().startswith("data: ")  # both slots are taken, and answer
    device = OpenAI(base_url=f"{chat.url}/v1", api_key=chat.key, max_retries=0)
    asked = hold(1)
    extra = {"ignore_eos": asked.pop("ignore_eos")}
    stream = iter(device.completions.create(model="any", extra_body=extra, **asked))
    assert next(stream).choices
    waiting = [
        chat.post(
            ("/chat", "/v1/completions")[n % 2],
            {"prompt": f"{n}: Hello!", "max_tokens": 4, "stream": n % 4 < 2},
        )
        for n in range(WAITING)
    ]
    await_true(lambda: chat.metrics("queue") == [WAITING], f"{WAITING} wait")
    chat.root(how)
    # What has begun cannot go on elsewhere: its client is told.
    assert '"type": "engine_died"' in list(held.blocks())[-1]
    with pytest.raises(APIError, match="the engine stopped in the middle"):
        list(stream)
    for n, answer in enumerate(waiting):
        assert answer.status == 200
        if n % 4 < 2:
            (*events, last) = answer.events()
            assert events
            assert "error" not in last
        else:
            assert answer.json()["usage" if n % 2 else "text"]
    assert chat.main_pid("llama-server") != before


def test_a_proxy_restart_refuses_nobody(chat: ChatHost) -> None:
    end = threading.Event()
    outcomes: Counter[str] = Counter()

    def load(path: str, body: Any) -> None:
        while not end.is_set():
            try:
                answer = chat.get(path) if body is None else chat.post(path, body)
                outcomes[f"{path} {answer.status}"] += 1
                answer.response.read()
            except (OSError, http.client.HTTPException) as error:
                outcomes[f"{path} {type(error).__name__}"] += 1
            finally:
                answer.leave()

    question = {"prompt": "Hello!", "max_tokens": 4}
    work = [("/healthz", None)] * 4 + [("/chat", question)] * 4
    with ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(load, *one) for one in work]
        try:
            for _ in range(3):
                before = chat.main_pid("chat-proxy")
                seen = outcomes.total()
                chat.root("systemctl restart chat-proxy")
                await_true(lambda: outcomes.total() > seen + 20, "clients go on")  # noqa: B023
                assert chat.main_pid("chat-proxy") != before
        finally:
            end.set()
        for one in running:
            one.result()
    assert set(outcomes) == {"/healthz 200", "/chat 200"}, outcomes
