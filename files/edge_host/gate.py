"""The gate: the proof that a host serves what is wanted."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from .answer import error_text, read_answer
from .paths import Paths
from .process import cpu_variant, memory
from .result import Failed, say
from .secret import FILE as KEY_FILE
from .secret import has_other_key, headers
from .systemd import running, running_digest, show
from .units import ENGINE, PROXY, UNITS
from .wanted import Wanted

QUESTION = {"prompt": "Say hello in one short sentence.", "max_tokens": 24}
CRASHES = 3  # restarts by systemd while we watch: it will not come up
POLL_S = 0.25
T = TypeVar("T")


class Gate:
    """The proof that a host serves the wanted state. Bounded by the request's gate_timeout_s."""

    def __init__(self, paths: Paths, wanted: Wanted, restarted: Iterable[str] = ()) -> None:
        self.paths, self.wanted = paths, wanted
        self.end = time.monotonic() + wanted.gate_timeout_s
        self.prime = ENGINE in restarted
        shown = show(paths, *UNITS)
        self.crashes = {u: int(shown[u].get("NRestarts") or 0) for u in (ENGINE, PROXY)}
        # systemd counts anew from a restart that was asked for.
        self.crashes.update(dict.fromkeys(set(restarted) & set(self.crashes), 0))
        self.exits: dict[str, str] = {}  # a crash as it was seen: the next start forgets it
        self.sockets: list[socket.socket] = []

    def run(self) -> dict[str, Any]:
        """The figures of what serves. Raises Failed with the reason in one sentence."""
        pid = self.wait_healthy()
        if self.prime:
            say(f"the engine is healthy; priming {self.wanted.slots} slots")
            self.watch("short requests to the engine", self.prime_slots)
        answer = self.watch("the answer of the proxy", self.ask)
        shown = show(self.paths, *UNITS)
        for unit, wanted in self.wanted.digests.items():
            if (found := running_digest(self.paths, shown, unit)) != wanted:
                found = found or "a process without a configuration digest"
                raise Failed(f"{unit} answers, but runs {found}, not {wanted}", unit)
            if has_other_key(self.paths, shown, unit):
                raise Failed(f"{unit} answers, but runs with another key than {KEY_FILE}", unit)
        if pid != running(self.paths, shown, ENGINE)[0]:
            raise Failed(f"{ENGINE} ended and was started again while it was asked", ENGINE)
        return {
            **answer,
            "engine_build": self.build(),
            "cpu_variant": cpu_variant(self.paths, pid),
            "memory": memory(self.paths, pid),
            "restarts": {u: int(shown[u].get("NRestarts") or 0) for u in (ENGINE, PROXY)},
            "units": {unit: shown[unit].get("ActiveState", "") for unit in UNITS},
        }

    def check_units(self) -> None:
        """Raises Failed as soon as a unit is seen not to come up."""
        shown = show(self.paths, *UNITS)
        for unit, properties in shown.items():
            state = properties.get("ActiveState")
            if properties.get("Result") != "success":
                self.exits[unit] = last_exit(properties)
            # Nothing is said of a good end: its program ended, or somebody stopped it.
            ended = f" (it ended: {self.exits[unit]})" if unit in self.exits else ""
            if state == "failed" or (state == "inactive" and unit != PROXY):
                raise Failed(f"{unit} is {state}{ended}", unit)
            crashes = int(properties.get("NRestarts") or 0) - self.crashes.get(unit, 0)
            if crashes >= CRASHES:
                raise Failed(f"{unit} keeps crashing{ended}", unit)

    def wait_healthy(self) -> int:
        """The engine's process once it is healthy; somebody else's answer is not taken for it."""
        last = "no answer"
        while time.monotonic() < self.end:
            self.check_units()
            pid, _ = running(self.paths, show(self.paths, ENGINE), ENGINE)
            try:
                with self.request(self.wanted.engine_url, "/health", timeout_s=5) as response:
                    if response.status == 200 and pid:
                        return pid
                    last = f"status {response.status}"
            except (OSError, http.client.HTTPException) as error:
                last = str(error) or repr(error)
            time.sleep(POLL_S)
        after = f"after {self.wanted.gate_timeout_s:g} s"
        raise Failed(f"{ENGINE} is not healthy {after} (/health: {last})", ENGINE)

    def watch(self, what: str, work: Callable[[], T]) -> T:
        """Let a thread wait for the network while we watch the units and the clock."""
        done: queue.Queue[Callable[[], T]] = queue.Queue()

        def run() -> None:
            try:
                value = work()
                done.put(lambda: value)
            except Exception as error:
                done.put(functools.partial(throw, error))

        threading.Thread(target=run, daemon=True).start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return done.get(timeout=POLL_S)()
                self.check_units()
                if time.monotonic() > self.end:
                    raise TimeoutError
        except TimeoutError:
            limit = f"{self.wanted.gate_timeout_s:g} s"
            raise Failed(f"{what} did not end within {limit}", ENGINE, PROXY) from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{what} failed: {error!r}", ENGINE, PROXY) from error
        finally:
            # A question that nobody waits for any more must not take the next state's slot.
            for one in self.sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def request(
        self, url: str, path: str, body: Any = None, more: Any = None, timeout_s: float = 1e6
    ) -> Iterator[http.client.HTTPResponse]:
        """GET, or POST where there is a body. Raises OSError and HTTPException."""
        parts = urlsplit(url)
        left = max(self.end - time.monotonic(), 0.1)
        connection = http.client.HTTPConnection(parts.netloc, timeout=min(timeout_s, left))
        with contextlib.closing(connection):
            connection.connect()
            if connection.sock is not None:
                self.sockets.append(connection.sock)
            sent = {"Content-Type": "application/json", "Connection": "close", **(more or {})}
            if body is None:
                connection.request("GET", path, headers=sent)
            else:
                connection.request("POST", path, json.dumps(body).encode(), sent)
            with connection.getresponse() as response:
                yield response

    def prime_slots(self) -> None:
        """As many short requests at once as there are slots: each slot is slow once."""
        key = headers(self.paths)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}

        def one() -> None:
            path = "/v1/chat/completions"
            try:
                with self.request(self.wanted.engine_url, path, body, key) as response:
                    response.read()
                    trouble = "" if response.status == 200 else f"status {response.status}"
            except (OSError, http.client.HTTPException) as error:
                trouble = repr(error)
            if trouble:  # the question that follows decides
                say(f"priming a slot: {trouble}")

        threads = [threading.Thread(target=one, daemon=True) for _ in range(self.wanted.slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def ask(self) -> dict[str, Any]:
        """A real question through the proxy, answered as a stream."""
        sent = {"Accept": "text/event-stream", **headers(self.paths)}
        refused_until = time.monotonic() + 5
        while True:
            start = time.monotonic()
            try:
                with self.request(self.wanted.proxy_url, "/chat", QUESTION, sent) as response:
                    if response.status == 200:
                        return read_answer(iter(response.readline, b""), start)
                    words = response.read(2000).decode(errors="replace")
                    with contextlib.suppress(ValueError):
                        words = error_text(json.loads(words))
                    problem = f"the proxy answered with status {response.status}: {words[:200]}"
                    # 429 and 503: clients are before us, or it is not ready yet.
                    again = response.status in (429, 503)
            except ConnectionRefusedError:
                problem = f"nothing listens at {self.wanted.proxy_url}"
                again = time.monotonic() < refused_until
            if not again or time.monotonic() > self.end - 1:
                raise Failed(problem, ENGINE, PROXY)
            time.sleep(POLL_S)

    def build(self) -> str | None:
        """The engine's build, in its own words."""
        url, key = self.wanted.engine_url, headers(self.paths)
        try:
            with self.request(url, "/props", more=key, timeout_s=10) as response:
                return str(json.loads(response.read())["build_info"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return None


def last_exit(properties: dict[str, str]) -> str:
    """How a unit's main process ended, as systemd saw it."""
    kind = {"1": "exit status", "2": "signal", "3": "signal"}.get(properties["ExecMainCode"])
    result = properties["Result"]
    return f"{result}, {kind} {properties['ExecMainStatus']}" if kind else result


def throw(error: Exception) -> NoReturn:
    """An exception as a function."""
    raise error
