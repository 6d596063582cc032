"""A provisioned lab host: its chat as a user reaches it, its engine as root on the host does."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab import fleet
from tests.lab.own_lab import OwnLab
from tests.proxy import proxy_process

PORT = 8000
ENGINE_PORT = 8080
WAIT_S = 120.0


NUMBERS = "Write the numbers from 1 to 500, one after another."
"""The model counts on until it is cut off: at temperature 0 always, as far as 512 tokens."""
HOLD_TOKENS = 1900


def hold(n: int) -> dict[str, Any]:
    """A request that keeps a slot until it is left or the slot's context is full."""
    return {
        "prompt": f"{n}: {NUMBERS}",
        "max_tokens": HOLD_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }


def user(text: str) -> dict[str, str]:
    """A turn of the asking side."""
    return {"role": "user", "content": text}


def await_true(
    condition: Callable[[], bool], what: str, seconds: float = 60, every_s: float = 0.01
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"this did not happen in {seconds:g} s: {what}"
        time.sleep(every_s)


class Answer(proxy_process.Answer):
    """One request to a host on a connection of its own."""

    def __init__(
        self, address: str, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> None:
        raw = None if body is None else json.dumps(body).encode()
        super().__init__(PORT, method, path, raw, headers, host=address, timeout_s=WAIT_S)

    @property
    def silent(self) -> bool:
        """Whether nothing has come yet, not even a status."""
        return self._response is None and not select.select([self._sock], [], [], 0)[0]

    def blocks(self) -> Iterator[str]:
        """All events and comments to the end."""
        while block := self.block():
            yield block

    def await_block(self, wanted: str) -> None:
        """Read on to an event or comment with this text."""
        for block in self.blocks():
            if wanted in block:
                return
        raise AssertionError(f"the answer ended without {wanted!r}")

    def events(self) -> list[Any]:
        """The data of all events to the end, OpenAI's [DONE] left out."""
        found = re.findall(r"^data: (\{.*)$", "\n".join(self.blocks()), re.MULTILINE)
        return [json.loads(one) for one in found]


@dataclass
class ChatHost:
    """One host that serves; the engine's own port is reached by SSH, as an operator would."""

    lab: OwnLab
    host: fleet.Host
    engine_port: int
    key: str = field(repr=False)
    engine_key: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{PORT}"

    def filled(self, text: str) -> str:
        """An example of the documentation with this host and its key."""
        return text.replace("DEVICE", self.host.address).replace("KEY", self.key)

    def root(self, script: str) -> str:
        """What a script prints that runs as root on the host, and must succeed."""
        return self.lab.ask(self.host, f"sudo sh -eu <<'END'\n{script}\nEND\n")

    def main_pid(self, unit: str) -> str:
        return self.root(f"systemctl show -P MainPID {unit}")

    def get(self, path: str) -> Answer:
        return Answer(self.host.address, "GET", path, None, self.headers)

    def post(self, path: str, body: Any) -> Answer:
        return Answer(self.host.address, "POST", path, body, self.headers)

    def metrics(self, pattern: str) -> list[float]:
        """The proxy's own figures whose name and labels match, without edge_proxy_."""
        text = self.get("/metrics").response.read().decode()
        return [float(n) for n in re.findall(rf"^edge_proxy_{pattern} (\S+)$", text, re.M)]

    def requests(self, path: str) -> int:
        """Good answers that the proxy has given on a path."""
        return int(sum(self.metrics(rf'requests_total{{path="{path}",status="200"}}')))

    def engine(self, path: str, body: Any = None) -> Any:
        """Ask the engine itself, past the proxy."""
        raw = self._engine(path, body)
        return json.loads(raw)

    def _engine(self, path: str, body: Any = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.engine_port, timeout=WAIT_S)
        key = {"Authorization": f"Bearer {self.engine_key}"}
        raw = None if body is None else json.dumps(body).encode()
        try:
            connection.request("GET" if raw is None else "POST", path, raw, key)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        assert response.status == 200, f"{path}: {response.status} {answer.decode()}"
        return answer

    def busy(self) -> list[dict[str, Any]]:
        """The engine's slots that are processing a request now."""
        return [slot for slot in self.engine("/slots") if slot["is_processing"]]

    def await_busy(
        self, count: int, seconds: float = 30, every_s: float = 0.01
    ) -> list[dict[str, Any]]:
        """The slots that are processing, once there are `count` of them."""
        slots: list[dict[str, Any]] = []

        def as_many() -> bool:
            slots[:] = self.busy()
            return len(slots) == count

        await_true(as_many, f"{count} slots process", seconds, every_s)
        return slots

    def generated(self, slot: dict[str, Any]) -> int:
        """Tokens that the slot has generated for its request so far."""
        now = next(one for one in self.engine("/slots") if one["id"] == slot["id"])
        return int(now["next_token"][0]["n_decoded"])

    def decodes(self) -> int:
        """Steps that the engine has computed since it was started: one a token, or fewer when
        slots go together; it stands still while the engine does."""
        found = re.search(rb"^llamacpp:n_decode_total (\d+)", self._engine("/metrics"), re.M)
        assert found is not None
        return int(found[1])

    def engine_answers(self) -> bool:
        try:
            return bool(self.engine("/health"))
        except (OSError, http.client.HTTPException, AssertionError):
            return False


@contextmanager
def connect(lab: OwnLab, host: fleet.Host) -> Iterator[ChatHost]:
    """The host, with a tunnel to its engine's loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    forward = f"127.0.0.1:{port}:127.0.0.1:{ENGINE_PORT}"
    words = fleet.ssh_command(lab.lab, host)
    options = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", forward]
    tunnel = subprocess.Popen([words[0], *options, *words[1:]], stdin=subprocess.DEVNULL)
    try:
        env = lab.ask(host, "sudo cat /etc/edge-llm/engine.env")
        engine_key = re.search(r"^LLAMA_API_KEY=(.+)$", env, re.M)
        assert engine_key is not None
        chat = ChatHost(lab, host, port, lab.lab.api_key.read_text().strip(), engine_key[1])
        await_true(chat.engine_answers, "the engine answers through the tunnel", 30)
        yield chat
    finally:
        tunnel.terminate()
        tunnel.wait()
