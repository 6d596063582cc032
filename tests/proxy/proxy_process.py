"""The proxy as a real process, and a client that can stop reading or leave at any byte."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

FILES = Path(__file__).parents[2] / "files"
WAIT_S = 10.0


class Proxy:
    """A running `python -m chat_proxy`; settings are given as `slots=2` for EDGE_PROXY_SLOTS,
    and `engine_key` for LLAMA_API_KEY."""

    def __init__(self, engine_url: str, *, pass_socket: bool = False, **settings: Any) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.lines: list[str] = []
        self.sent = 0  # requests that the log has a line for
        self._changed = threading.Condition()
        env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
        env |= {"EDGE_PROXY_ENGINE_URL": engine_url, "EDGE_PROXY_PORT": str(self.port)}
        if engine_key := settings.pop("engine_key", None):
            env["LLAMA_API_KEY"] = engine_key
        env |= {f"EDGE_PROXY_{k.upper()}": str(v) for k, v in settings.items()}
        self.env = env
        if pass_socket:
            self.listener.listen(128)
        else:
            self.listener.close()
        self.start(pass_socket=pass_socket)

    def start(self, *, pass_socket: bool = False) -> None:
        command = [sys.executable, "-m", "chat_proxy"]
        kept: tuple[int, ...] = ()
        if pass_socket:
            # what systemd does: the socket is number 3, and LISTEN_PID names the process
            kept = (self.listener.fileno(),)
            script = f'exec 3<&{kept[0]}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"'
            command = ["bash", "-c", script, *command]
        self.process = subprocess.Popen(
            command,
            cwd=FILES,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=kept,
        )
        threading.Thread(target=self._collect, args=[self.process], daemon=True).start()
        for _ in range(int(WAIT_S / 0.02)):
            try:
                assert self.get("/healthz").status == 200
                return
            except (OSError, http.client.HTTPException):
                assert self.process.poll() is None, self.process.stderr.read()  # type: ignore[union-attr]
                threading.Event().wait(0.02)
        raise AssertionError("the proxy does not start")

    def _collect(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self.lines.append(line.strip())
                self._changed.notify_all()

    def line(self, number: int) -> dict[str, str]:
        """Line `number` of the log, once it is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) > number, WAIT_S), self.lines
            return dict(pair.split("=", 1) for pair in self.lines[number].split())

    def settle(self) -> None:
        """Wait until every request has ended, which its line in the log says; forget them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) == self.sent, WAIT_S), (
                f"{self.sent} requests, but {self.lines}"
            )
            self.lines, self.sent = [], 0

    def memory_mib(self, what: str) -> float:
        """The process's "VmRSS" (resident now) or "VmHWM" (the most that it was), in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> str:
        """End the process; its stderr."""
        if self.process.poll() is None:
            self.terminate()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def get(self, path: str, method: str = "GET", **headers: str) -> "Answer":
        self.sent += path.startswith("/v1")
        return Answer(self.port, method, path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> "Answer":
        """Send a request; comes back with status and headers, or waits for them on use."""
        self.sent += 1
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Answer(self.port, "POST", path, raw, headers)

    def chat(self, prompt: str = "hi", **more: Any) -> "Answer":
        return self.post("/chat", {"prompt": prompt, **more})


class Answer:
    """One request; the answer is read only as far as a test asks."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        *,
        host: str = "127.0.0.1",
        timeout_s: float = WAIT_S,
    ) -> None:
        self._conn = http.client.HTTPConnection(host, port, timeout=timeout_s)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self._conn.request(method, path, body, names)
        self._sock = self._conn.sock  # http.client forgets it when the server will close
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = self._conn.getresponse()
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    def header(self, name: str) -> str | None:
        return self.response.getheader(name)

    def read(self) -> bytes:
        return self.response.read()

    def json(self) -> Any:
        return json.loads(self.read())

    def block(self) -> str:
        """The next event or comment; "" at the end."""
        lines = []
        while line := self.response.readline():
            if line == b"\n":
                break
            lines.append(line)
        return b"".join(lines).decode()

    def event(self) -> str:
        """The next event; comments before it are left out."""
        while (block := self.block()).startswith(":"):
            pass
        return block

    def events(self) -> list[Any]:
        """The data of all events to the end; comments are left out."""
        found = []
        while block := self.block():
            if not block.startswith(":"):
                data = block.split("data: ", 1)[1]
                found.append(json.loads(data))
        return found

    def text(self) -> str:
        return "".join(one["text"] for one in self.events() if "text" in one)

    def leave(self) -> None:
        """Hang up, whatever was read; unread bytes make it a reset, as with a killed client."""
        if self._response is not None:
            self._response.close()  # it holds the socket open as well
        self._conn.close()
        self._sock.close()
