"""API keys on real hosts: made, used, changed without a restart, revoked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from edge.cli import main
from tests.lab.conftest import OwnLab
from tests.lab.rollout import data, deploy, pids

QUESTION = {"prompt": "Say hello.", "max_tokens": 8}


@pytest.fixture(scope="module")
def served(own_lab: OwnLab) -> Iterator[OwnLab]:
    run = deploy(own_lab)
    assert run.code == 0, run.log
    yield own_lab
    run = deploy(own_lab)  # with the lab's key again
    assert run.code == 0, run.log


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def new_key(file: Path, name: str, *options: str) -> str:
    result = CliRunner().invoke(main, ["key", "new", name, "--file", str(file), *options])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def ask(lab: OwnLab, key: str | None, path: str = "/chat") -> int:
    """The status of an answer over the network."""
    url = f"http://{lab.host('n100').address}:8000{path}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if path == "/chat":
        return requests.post(url, json=QUESTION, headers=headers, timeout=60).status_code
    return requests.get(url, headers=headers, timeout=60).status_code


def test_keys_come_and_go_without_a_restart(served: OwnLab, file: Path) -> None:
    one = new_key(file, "one")
    settings = data(api_keys_file=str(file))
    assert deploy(served, *settings).code == 0
    before = pids(served)
    assert (ask(served, one), ask(served, None), ask(served, "edge-guess")) == (200, 401, 401)
    assert ask(served, served.lab.api_key.read_text().strip()) == 401  # no more

    two = new_key(file, "two", "--rate", "1")
    run = deploy(served, *settings)
    assert run.code == 0, run.log
    assert set(run.changed) == {"Services | Files", "Gate | Switch and prove"}
    assert (ask(served, one), ask(served, two), ask(served, two)) == (200, 200, 429)

    assert CliRunner().invoke(main, ["key", "revoke", "one", "--file", str(file)]).exit_code == 0
    run = deploy(served, *settings)
    assert run.code == 0, run.log
    assert ask(served, one) == 401
    assert pids(served) == before
    assert deploy(served, *settings).changed == {}


def test_what_is_open_without_a_key_and_what_is_not(served: OwnLab) -> None:
    assert deploy(served).code == 0
    for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json"):
        assert ask(served, None, path) == 200, path
    for path in ("/chat", "/v1/models", "/metrics"):
        assert ask(served, None, path) == 401, path


def test_each_host_has_an_engine_key_of_its_own_and_no_rollout_tells_it(served: OwnLab) -> None:
    served.ask(served.host("pi5"), "sudo rm /etc/edge-llm/engine.env")
    run = deploy(served)
    assert run.code == 0, run.log
    assert run.changed == {"Gate | Switch and prove": [served.host("pi5").name]}
    keys = set()
    for host in served.fleet.hosts:
        line = served.ask(host, "sudo cat /etc/edge-llm/engine.env")
        keys.add(line.partition("=")[2])
        manifest = served.ask(host, "sudo cat /var/lib/edge-llm/manifest.json")
        assert line.partition("=")[2] not in run.log + json.dumps(run.results) + manifest
    assert len(keys) == len(served.fleet.hosts)


def test_clients_do_not_notice_that_the_engine_has_a_new_key(served: OwnLab) -> None:
    """They wait, as for any restart; only what runs at that moment may be cut."""
    assert deploy(served).code == 0
    key = served.lab.api_key.read_text().strip()
    host = served.host("n100")
    over = threading.Event()
    found: list[int] = []

    def keep_asking() -> None:
        url = f"http://{host.address}:8000/chat"
        headers = {"Authorization": f"Bearer {key}"}
        while not over.is_set():  # in one, so that the status tells all
            body = {**QUESTION, "stream": False}
            found.append(requests.post(url, json=body, headers=headers, timeout=60).status_code)

    before = pids(served)
    served.ask(host, "sudo rm /etc/edge-llm/engine.env")
    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(keep_asking) for _ in range(6)]
        try:
            run = deploy(served, "--limit", host.name)
        finally:
            over.set()
        for one in asking:
            one.result()
    assert run.code == 0, run.log
    assert run.changed == {"Gate | Switch and prove": [host.name]}
    now = pids(served)
    assert {unit for unit in before if now[unit] != before[unit]} == {
        (host.hardware, unit) for unit in ("llama-server", "chat-proxy")
    }
    assert set(found) <= {200, 502}
    # two slots; a request that runs is asked once more before it counts as cut
    assert found.count(502) <= 2
    assert found.count(200) >= 6


def test_a_revoked_key_does_not_come_back_with_the_last_good_state(
    served: OwnLab, file: Path
) -> None:
    one, two = new_key(file, "one"), new_key(file, "two")
    settings = data(api_keys_file=str(file))
    assert deploy(served, *settings).code == 0
    assert ask(served, one) == 200
    assert CliRunner().invoke(main, ["key", "revoke", "one", "--file", str(file)]).exit_code == 0
    # The new state cannot come up: somebody else has the engine's port.
    host = served.host("n100")
    squatter = "python3 -m http.server --bind 127.0.0.1 8123"
    served.ask(host, f"sudo systemd-run --quiet --collect --unit=squatter {squatter}")
    try:
        run = deploy(served, "--limit", host.name, *settings, *data(engine_port=8123))
        assert "Went back to what was last good; the host serves again." in run.log
        assert (ask(served, one), ask(served, two)) == (401, 200)
    finally:
        served.ask(host, "sudo systemctl stop squatter")
