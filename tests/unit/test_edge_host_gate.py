"""files/edge_host: the gate, against a real HTTP server; control groups as hosts show them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from edge_host.answer import read_answer, sse_events
from edge_host.files import write_atomic
from edge_host.gate import Gate
from edge_host.paths import Paths
from edge_host.process import cpu_variant, memory, memory_group
from edge_host.result import Failed
from edge_host.secret import FILE as KEY_FILE
from edge_host.units import ENGINE, PROXY, SOCKET
from edge_host.wanted import Wanted

SYSTEMCTL = '#!/bin/sh\nshift 3\nfor unit; do cat "{state}/$unit"; echo; done\n'
DONE = b'data: {"done": true, "usage": {"completion_tokens": 5}}\n\n'


# --- event streams -------------------------------------------------------------------------------


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"data: a\r\n\r\n", [("", "a")]),
        (b"data:a\ndata: b\n\n", [("", "a\nb")]),
        (b": ping\n\ndata: a\n\n", [("", "a")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [("error", "x"), ("", "y")]),
        (b"event: nothing\n\ndata: a\n\n", [("", "a")]),
        (b"data: not ended\n", []),
        ("data: 你好\n\n".encode(), [("", "你好")]),
    ],
)
def test_events(data: bytes, events: list[tuple[str, str]]) -> None:
    assert list(sse_events(lines(data))) == events


def test_an_answer_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.25, 10.75, 11.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = b'data: {"text": " "}\n\ndata: {"text": "Hel"}\n\ndata: {"text": "lo"}\n\n' + DONE
    assert read_answer(lines(stream), 10.0) == {
        "first_token_ms": 250.0,
        "total_ms": 1000.0,
        "tokens": 5,
        "tokens_per_s": 8.0,
    }


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (DONE, "the answer was empty"),
        (b'data: {"text": " \\n"}\n\n' + DONE, "the answer was empty"),
        (b'data: {"text": "Hel"}\n\n', "broke off before its end"),
        (b"", "broke off before its end"),
        (b"data: [DONE]\n\n", "no JSON object"),
        (b"data: <html>\n\n", "no JSON object"),
        (
            b'data: {"text": "a"}\n\nevent: error\ndata: {"error": {"message": "gone\\nnow"}}\n\n',
            "ended with an error: gone now",
        ),
        (b'event: error\ndata: {"error": "gone"}\n\n', "ended with an error: gone"),
    ],
)
def test_what_is_no_answer(stream: bytes, reason: str) -> None:
    with pytest.raises(Failed) as caught:
        read_answer(lines(stream), time.monotonic())
    assert reason in str(caught.value)
    assert caught.value.units == (ENGINE, PROXY)


# --- control groups ------------------------------------------------------------------------------

V1_STAT = "cache 1\nrss 2\nhierarchical_memory_limit 9\ntotal_cache 300\ntotal_rss 200\n"
V2_STAT = "anon 200\nfile 300\nkernel 5\n"
UNIT = "edge-llm.slice/llama-server.service"


def host(
    root: Path,
    cgroup: str,
    mountinfo: str,
    group: str,
    files: dict[str, str],
    pids: str = "7\n42\n",
) -> Paths:
    """A host whose process 42 is the engine."""
    for path, text in {
        "proc/42/cgroup": cgroup,
        "proc/self/mountinfo": mountinfo,
        **{f"{group}/{name}": text for name, text in files.items()},
        f"{group}/cgroup.procs": pids,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Paths(root)


V2 = {"memory.current": "900\n", "memory.max": "1200\n", "memory.stat": V2_STAT}
V1 = {
    "memory.usage_in_bytes": "900\n",
    "memory.limit_in_bytes": "1200\n",
    "memory.stat": V1_STAT,
}
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "28 25 0:37 / /sys/fs/cgroup/systemd rw shared:6 - cgroup cgroup rw,name=systemd\n"
    "29 25 0:24 / /sys/fs/cgroup/unified rw shared:7 - cgroup2 cgroup2 rw\n"
    "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "36 25 0:32 {root} /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory\n"
)
V1_LINES = "9:name=systemd:{path}\n4:memory:{path}\n1:cpu,cpuacct:{path}\n0::{path}\n"


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "group", "files"),
    [
        pytest.param(
            f"0::/{UNIT}\n", V2_MOUNT.format(root="/"), f"sys/fs/cgroup/{UNIT}", V2, id="v2"
        ),
        pytest.param(
            f"0::/machine/h/{UNIT}\n",
            V2_MOUNT.format(root="/machine/h"),
            f"sys/fs/cgroup/{UNIT}",
            V2,
            id="v2-part-of-the-tree-mounted",
        ),
        pytest.param(
            V1_LINES.format(path=f"/{UNIT}"),
            V1_MOUNTS.format(root="/"),
            f"sys/fs/cgroup/memory/{UNIT}",
            V1,
            id="v1-and-hybrid",
        ),
        pytest.param(
            V1_LINES.format(path=f"/lab/h/{UNIT}"),
            V1_MOUNTS.format(root="/"),
            f"sys/fs/cgroup/memory/lab/h/{UNIT}",
            V1,
            id="v1-container-sees-the-whole-tree",
        ),
        pytest.param(
            V1_LINES.format(path=f"/lab/h/{UNIT}"),
            V1_MOUNTS.format(root="/lab/h"),
            f"sys/fs/cgroup/memory/{UNIT}",
            V1,
            id="v1-container-sees-its-part",
        ),
        pytest.param(
            V1_LINES.format(path=f"/{UNIT}"),
            V1_MOUNTS.format(root="/lab/h"),
            f"sys/fs/cgroup/memory/{UNIT}",
            V1,
            id="v1-namespace-with-the-mount-of-before",
        ),
    ],
)
def test_memory_is_read_where_the_process_is(
    tmp_path: Path, cgroup: str, mountinfo: str, group: str, files: dict[str, str]
) -> None:
    paths = host(tmp_path, cgroup, mountinfo, group, files)
    found = memory_group(paths, 42)
    assert found == (1 if files is V1 else 2, tmp_path / group)
    assert memory(paths, 42) == {"current": 900, "anon": 200, "file": 300, "max": 1200}


@pytest.mark.parametrize(
    ("version", "limit"), [(1, "9223372036854771712"), (1, "9223372036854710272"), (2, "max")]
)
def test_no_limit_is_none(tmp_path: Path, version: int, limit: str) -> None:
    if version == 1:
        paths = host(
            tmp_path,
            V1_LINES.format(path="/u"),
            V1_MOUNTS.format(root="/"),
            "sys/fs/cgroup/memory/u",
            {**V1, "memory.limit_in_bytes": limit},
        )
    else:
        paths = host(
            tmp_path,
            "0::/u\n",
            V2_MOUNT.format(root="/"),
            "sys/fs/cgroup/u",
            {**V2, "memory.max": limit},
        )
    assert memory(paths, 42)["max"] is None


def test_another_groups_memory_is_not_taken(tmp_path: Path) -> None:
    """A directory of the right name in which the process is not; the same without a process."""
    group = f"sys/fs/cgroup/{UNIT}"
    paths = host(tmp_path, f"0::/{UNIT}\n", V2_MOUNT.format(root="/"), group, V2, pids="4\n421\n")
    nothing = dict.fromkeys(("current", "anon", "file", "max"))
    assert memory(paths, 42) == nothing
    assert memory(paths, 0) == nothing


@pytest.mark.parametrize(
    ("path", "variant"),
    [
        ("/opt/edge-llm/engine/releases/b1/libggml-cpu-alderlake.so", "alderlake"),
        ("/opt/edge-llm/engine/releases/b1/libggml-cpu-armv8.2_2.so", "armv8.2_2"),
        ("/opt/edge-llm/engine/releases/b1/libggml-cpu-haswell.so.0.9.4", "haswell"),
        ("/opt/edge-llm/engine/releases/b1/libggml-base.so", None),
    ],
)
def test_cpu_variant(tmp_path: Path, path: str, variant: str | None) -> None:
    maps = tmp_path / "proc/42/maps"
    maps.parent.mkdir(parents=True)
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 17    /lib/libc.so.6\n7f02-7f03 r 0 0 1 {path}\n"
    )
    assert cpu_variant(Paths(tmp_path), 42) == variant
    assert cpu_variant(Paths(tmp_path), 43) is None


# --- the gate ------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Engine and proxy in one. What it answers is set by the test; it remembers what was asked."""

    daemon_threads = True
    props = json.dumps({"build_info": "b11312-0c1e57098"}).encode()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.health = [200]
        self.chat: list[tuple[int, bytes]] = [(200, b'data: {"text": "Hello"}\n\n' + DONE)]
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.together = 0
        self.most_together = 0
        self.change = threading.Condition()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self, status: int, body: bytes, *, whole: bool = True) -> None:
        self.send_response(status)
        if whole:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/props":
            key = self.headers.get("Authorization")
            self.answer(200 if key == "Bearer k1" else 401, self.server.props)
            return
        more = len(self.server.health) > 1
        self.answer(self.server.health.pop(0) if more else self.server.health[0], b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), body))
        if self.path == "/chat":
            more = len(self.server.chat) > 1
            status, stream = self.server.chat.pop(0) if more else self.server.chat[0]
            self.answer(status, stream, whole=False)
            if not stream:  # an answer that never comes: until the client leaves
                self.wfile.flush()
                self.connection.recv(1)
                self.server.ended.set()
            return
        with self.server.change:
            self.server.together += 1
            self.server.most_together = max(self.server.most_together, self.server.together)
            self.server.change.notify_all()
            # A slot is busy until all are.
            self.server.change.wait_for(lambda: self.server.most_together >= 3, timeout=10)
            self.server.together -= 1
        self.answer(200, b"{}")

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


KEY, OTHER = "a1" * 32, "b2" * 32


class Units:
    """What systemd says, changed by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "systemd").mkdir()
        program = root / "systemctl"
        program.write_text(SYSTEMCTL.format(state=root / "systemd"))
        program.chmod(0o755)
        self.paths = Paths(root / "root", str(program), "true")
        for name, pid in ((ENGINE, "42"), (PROXY, "43")):
            self.set(name, MainPID=pid, NRestarts="7")
        self.set(SOCKET)
        self.environment(42, "EDGE_LLM_DIGEST=d1")
        self.environment(43, "EDGE_LLM_DIGEST=d2")

    def set(self, unit: str, **properties: str) -> None:
        known = {"Id": unit, "ActiveState": "active", "Result": "success", "ExecMainCode": "0"}
        file = self.root / "systemd" / unit
        new = file.with_suffix(".new")
        text = "".join(f"{k}={v}\n" for k, v in {**known, **properties}.items())
        new.write_text(text)
        new.replace(file)

    def environment(self, pid: int, *words: str) -> None:
        file = self.paths.at(f"/proc/{pid}/environ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\0".join(words) + "\0")

    def key(self) -> None:
        """The engine's key on the disk, and in both services."""
        write_atomic(self.paths.at(KEY_FILE), f"LLAMA_API_KEY={KEY}\n".encode(), 0o600)
        for name, pid, digest in ((ENGINE, 42, "d1"), (PROXY, 43, "d2")):
            files = f"{KEY_FILE} (ignore_errors=no)"
            self.set(name, MainPID=str(pid), NRestarts="0", EnvironmentFiles=files)
            self.environment(pid, f"EDGE_LLM_DIGEST={digest}", f"LLAMA_API_KEY={KEY}")


@pytest.fixture
def units(tmp_path: Path) -> Units:
    return Units(tmp_path)


def gate(units: Units, server: Server, restarted: tuple[str, ...] = (), **more: Any) -> Gate:
    wanted = Wanted.parse(
        {
            "format": 1,
            "plan_digest": "p",
            "releases": {"engine": "e", "proxy": "x"},
            "model": {"path": "/m", "sha256": "", "name": "m"},
            "digests": {"llama-server": "d1", "chat-proxy": "d2"},
            "files": [],
            "enable": [],
            "engine_url": server.url,
            "proxy_url": server.url,
            "slots": 3,
            "gate_timeout_s": 20,
            "keep_releases": 2,
            **more,
        }
    )
    return Gate(units.paths, wanted, restarted)


def test_what_serves_is_measured(units: Units, server: Server) -> None:
    figures = gate(units, server).run()
    assert figures["tokens"] == 5
    assert figures["total_ms"] >= figures["first_token_ms"] > 0
    assert figures["engine_build"] == "b11312-0c1e57098"
    assert figures["restarts"] == {ENGINE: 7, PROXY: 7}
    assert figures["units"] == dict.fromkeys((ENGINE, SOCKET, PROXY), "active")
    path, _, body = server.asked[0]
    assert path == "/chat"
    assert json.loads(body) == {"prompt": "Say hello in one short sentence.", "max_tokens": 24}
    # Nothing was restarted, so nothing is primed.
    assert len(server.asked) == 1


def test_all_slots_are_primed_at_once_after_a_restart(units: Units, server: Server) -> None:
    units.key()
    gate(units, server, (ENGINE,)).run()
    assert server.most_together == 3
    *primes, chat = server.asked
    assert [path for path, _, _ in primes] == ["/v1/chat/completions"] * 3
    assert {headers["Authorization"] for _, headers, _ in (*primes, chat)} == {f"Bearer {KEY}"}


def test_a_loading_engine_is_waited_for(units: Units, server: Server) -> None:
    server.health = [503, 503, 200]
    assert gate(units, server).run()["tokens"] == 5


def test_a_busy_proxy_is_asked_again(units: Units, server: Server) -> None:
    server.chat.insert(0, (503, b'{"error": {"message": "queue is full"}}'))
    assert gate(units, server).run()["tokens"] == 5


def test_a_host_from_before_there_were_keys_is_asked_without(units: Units, server: Server) -> None:
    assert gate(units, server).run()["tokens"] == 5
    assert "Authorization" not in server.asked[0][1]


@pytest.mark.parametrize("unit", [ENGINE, PROXY])
def test_another_key_than_the_files_is_no_success(units: Units, server: Server, unit: str) -> None:
    units.key()
    pid = {ENGINE: 42, PROXY: 43}[unit]
    digest = {ENGINE: "d1", PROXY: "d2"}[unit]
    units.environment(pid, f"EDGE_LLM_DIGEST={digest}", f"LLAMA_API_KEY={OTHER}")
    with pytest.raises(Failed) as caught:
        gate(units, server).run()
    assert str(caught.value) == f"{unit} answers, but runs with another key than {KEY_FILE}"


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b'{"error": {"message": "a key is needed"}}', "with status 401: a key is needed"),
        (502, b"<html>bad\ngateway</html>", "with status 502: <html>bad"),
    ],
)
def test_a_refusal_is_told(
    units: Units, server: Server, status: int, body: bytes, reason: str
) -> None:
    server.chat = [(status, body)]
    with pytest.raises(Failed) as caught:
        gate(units, server).run()
    assert reason in str(caught.value)


@pytest.mark.parametrize("unit", [ENGINE, PROXY])
def test_a_crash_while_it_answers_ends_the_waiting(units: Units, server: Server, unit: str) -> None:
    server.chat = [(200, b"")]
    here = gate(units, server, gate_timeout_s=100)

    def crash() -> None:
        while not server.asked:
            time.sleep(0.01)
        units.set(unit, ActiveState="failed", Result="signal", ExecMainCode="2", ExecMainStatus="9")

    thread = threading.Thread(target=crash)
    thread.start()
    with pytest.raises(Failed) as caught:
        here.run()
    thread.join()
    assert str(caught.value) == f"{unit} is failed (it ended: signal, signal 9)"
    assert caught.value.units == (unit,)
    # The question that nobody waits for is taken back.
    assert server.ended.wait(10)


def test_a_stop_is_not_said_to_be_an_end_of_its_own(units: Units, server: Server) -> None:
    server.health = [503]
    here = gate(units, server, gate_timeout_s=100)
    units.set(ENGINE, ActiveState="inactive", MainPID="0")
    with pytest.raises(Failed) as caught:
        here.run()
    assert str(caught.value) == f"{ENGINE} is inactive"


def test_a_crash_loop_is_not_waited_for(units: Units, server: Server) -> None:
    """Counted from the gate's start: what crashed last week does not matter."""
    server.health = [503]
    here = gate(units, server, gate_timeout_s=100)
    units.set(ENGINE, MainPID="44", NRestarts="10")
    with pytest.raises(Failed, match=rf"{ENGINE} keeps crashing"):
        here.run()


def test_restarts_count_from_nought_after_one_that_was_asked_for(
    units: Units, server: Server
) -> None:
    units.set(ENGINE, MainPID="42", NRestarts="3")
    with pytest.raises(Failed, match="keeps crashing"):
        gate(units, server, (ENGINE,)).run()


@pytest.mark.parametrize(
    ("health", "chat", "reason"),
    [
        (503, b"", "llama-server.service is not healthy after 1 s (/health: status 503)"),
        (200, b"", "the answer of the proxy did not end within 1 s"),
    ],
)
def test_too_late(units: Units, server: Server, health: int, chat: bytes, reason: str) -> None:
    server.health, server.chat = [health], [(200, chat)]
    with pytest.raises(Failed) as caught:
        gate(units, server, gate_timeout_s=1).run()
    assert str(caught.value) == reason


def test_somebody_elses_answer_is_not_the_engines(units: Units, server: Server) -> None:
    """Another program has the port; our engine, which cannot have it, is between two crashes."""
    units.set(ENGINE, ActiveState="activating", MainPID="0", NRestarts="7")
    with pytest.raises(Failed, match="is not healthy after 1 s"):
        gate(units, server, gate_timeout_s=1).run()


def test_nothing_listens(units: Units, server: Server) -> None:
    with pytest.raises(Failed, match=r"nothing listens at http://127\.0\.0\.1:1"):
        gate(units, server, proxy_url="http://127.0.0.1:1", gate_timeout_s=2).run()


@pytest.mark.parametrize(("pid", "unit"), [(42, ENGINE), (43, PROXY)])
def test_another_configuration_than_wanted_is_no_success(
    units: Units, server: Server, pid: int, unit: str
) -> None:
    units.environment(pid, "EDGE_LLM_DIGEST=old")
    with pytest.raises(Failed, match=f"{unit} answers, but runs old, not d"):
        gate(units, server).run()
