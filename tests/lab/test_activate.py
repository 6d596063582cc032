"""files/edge_host on a lab host with real systemd: small stand-ins for engine and proxy."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from edge.agent import agent_program
from lab import fleet
from tests.lab.own_lab import lab_up

PROGRAM = "/opt/edge-llm/bin/edge-host"
STATE = "/var/lib/edge-llm"
ENGINE, SOCKET, PROXY = "llama-server.service", "chat-proxy.socket", "chat-proxy.service"
UNITS = "/etc/systemd/system"

# Setting the lab up may mean building its image; the tests wait for conditions, not for times.
pytestmark = [pytest.mark.timeout(900)]

ENGINE_CODE = """
import http.server, json, os, sys, time
KIND = {kind!r}
print("stand-in engine", KIND, flush=True)
if KIND == "crash":
    sys.exit("boom: this engine cannot start")
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def refused(self):
        key = os.environ.get("LLAMA_API_KEY")
        known = key is None or self.headers["Authorization"] == "Bearer " + key
        if not known:
            self.answer(401, {{"error": {{"message": "no key"}}}})
        return not known
    def do_GET(self):
        if self.path != "/health" and self.refused():
            return
        if self.path == "/props":
            self.answer(200, {{"build_info": "b1-" + KIND}})
        else:
            self.answer(503 if KIND == "sick" else 200, {{}})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.refused():
            return
        if KIND == "hang":
            time.sleep(3600)
        text = "" if KIND == "empty" else "Hello from " + KIND
        self.answer(200, {{"choices": [{{"message": {{"content": text}}}}]}})
    def log_message(self, form, *args):
        print("engine:", form % args, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""

PROXY_CODE = """
import http.server, json, os, socket, urllib.request
KIND = {kind!r}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if KIND == "perr":
            self.wfile.write(b'event: error\\ndata: {{"error": {{"message": "no luck"}}}}\\n\\n')
            return
        key = {{"Authorization": "Bearer " + os.environ.get("LLAMA_API_KEY", "")}}
        url = "http://127.0.0.1:8080/v1/chat/completions"
        asked = urllib.request.urlopen(urllib.request.Request(url, b"{{}}", key))
        text = json.load(asked)["choices"][0]["message"]["content"]
        for word in text.split():
            self.wfile.write(b"data: " + json.dumps({{"text": word + " "}}).encode() + b"\\n\\n")
            self.wfile.flush()
        end = {{"done": True, "usage": {{"completion_tokens": len(text.split())}}}}
        self.wfile.write(b"data: " + json.dumps(end).encode() + b"\\n\\n")
    def log_message(self, form, *args):
        print("proxy:", form % args, os.environ.get("WORDS"), flush=True)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=3)
server.serve_forever()
"""

SERVICE = """[Unit]
Description={what} ({note})
StartLimitIntervalSec=0
{more}
[Service]
Type=exec
Environment=EDGE_LLM_DIGEST={digest}
EnvironmentFile=-/etc/edge-llm/{what}-words.env
{key}
ExecStart=/usr/bin/python3 /opt/edge-llm/{what}/current/{what}.py
Restart=always
RestartSec=1
MemoryMax=200M
[Install]
WantedBy=multi-user.target
"""
SOCKET_UNIT = """[Unit]
Description=Socket ({note})
[Socket]
ListenStream=127.0.0.1:8000
[Install]
WantedBy=sockets.target
"""


@dataclass(frozen=True)
class State:
    """A state that a rollout asks for; what the stand-ins do is in their release's name."""

    engine: str = "good"
    proxy: str = "plain"
    words: str = "one"
    note: str = "first"
    socket_note: str = "first"
    requires: str = f"Requires={SOCKET}"
    gate_timeout_s: float = 20
    key: bool = True

    def digest(self, service: str) -> str:
        parts = {"engine": (self.engine, self.note), "proxy": (self.proxy, self.words, self.note)}
        return hashlib.sha256(repr(parts[service]).encode()).hexdigest()[:16]

    def files(self) -> dict[str, str]:
        """The managed files: what is put on the host before it is told to activate."""
        more = f"{self.requires}\nAfter={SOCKET} {ENGINE}"
        key = "EnvironmentFile=/etc/edge-llm/engine.env" if self.key else ""
        units = {
            ENGINE: SERVICE.format(
                what="engine", note=self.note, digest=self.digest("engine"), more="", key=key
            ),
            PROXY: SERVICE.format(
                what="proxy", note=self.note, digest=self.digest("proxy"), more=more, key=key
            ),
            SOCKET: SOCKET_UNIT.format(note=self.socket_note),
        }
        return {
            "/etc/edge-llm/proxy-words.env": f"WORDS={self.words}\n",
            **{f"{UNITS}/{name}": text for name, text in units.items()},
        }

    def releases(self) -> dict[str, str]:
        """The releases and the model."""
        engine, proxy = (f"/opt/edge-llm/{kind}/releases" for kind in ("engine", "proxy"))
        return {
            f"{engine}/{self.engine}/engine.py": ENGINE_CODE.format(kind=self.engine),
            f"{engine}/{self.engine}/.complete": "",
            f"{proxy}/{self.proxy}/proxy.py": PROXY_CODE.format(kind=self.proxy),
            f"{proxy}/{self.proxy}/.complete": "",
            "/opt/edge-llm/models/0123456789abcdef/model.gguf": "GGUF",
            "/opt/edge-llm/models/0123456789abcdef/.verified": "",
        }

    def request(self) -> dict[str, Any]:
        return {
            "format": 1,
            "plan_digest": f"plan of {self}",
            "releases": {"engine": self.engine, "proxy": self.proxy},
            "model": {
                "path": "/opt/edge-llm/models/0123456789abcdef/model.gguf",
                "sha256": "0123456789abcdef",
                "name": "stand-in",
            },
            "digests": {"llama-server": self.digest("engine"), "chat-proxy": self.digest("proxy")},
            "files": sorted(self.files()),
            "enable": [ENGINE, SOCKET, PROXY],
            "engine_url": "http://127.0.0.1:8080",
            "proxy_url": "http://127.0.0.1:8000",
            "slots": 2,
            "gate_timeout_s": self.gate_timeout_s,
            "keep_releases": 2,
        }


GOOD = State()


@dataclass(frozen=True)
class Host:
    """The lab host, over SSH."""

    ssh: tuple[str, ...]

    def command(self, line: str) -> list[str]:
        return [*self.ssh, f"sudo sh -c {_quoted(line)}"]

    def sh(self, line: str, stdin: bytes = b"") -> str:
        """Run a line as root; fails the test if it fails."""
        done = subprocess.run(self.command(line), input=stdin, capture_output=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr.decode()}"
        return done.stdout.decode()

    def put(self, files: Mapping[str, str]) -> None:
        """Write files, as a rollout does: those that are there already keep their times."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, text in files.items():
                entry = tarfile.TarInfo("." + path)
                data = text.encode()
                entry.size, entry.mtime = len(data), int(time.time())
                tar.addfile(entry, io.BytesIO(data))
        new = "/run/rollout"
        self.sh(
            f"rm -rf {new}; mkdir {new}; tar -xmf - -C {new}; cd {new}; find . -type f | while "
            'read -r f; do cmp -s "$f" "/$f" || { mkdir -p "/${f%/*}"; mv "$f" "/$f"; }; done',
            archive.getvalue(),
        )

    def edge_host(self, verb: str, state: State) -> dict[str, Any]:
        """Run the program as a rollout does."""
        line = f"systemd-run --quiet --collect --wait --pipe {PROGRAM} {verb}"
        done = subprocess.run(
            self.command(line),
            input=json.dumps(state.request()).encode(),
            capture_output=True,
            timeout=200,
        )
        print(done.stderr.decode(), done.stdout.decode())
        result: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if result["ok"] else 1)
        return result

    def roll_out(self, state: State) -> dict[str, Any]:
        self.put({**state.releases(), **state.files()})
        return self.edge_host("activate", state)

    def show(self, unit: str, name: str) -> str:
        return self.sh(f"systemctl show -P {name} {unit}").strip()

    def digest(self, unit: str) -> str:
        """The digest in the environment of what runs."""
        pid = self.show(unit, "MainPID")
        words = self.sh(f"cat /proc/{pid}/environ").split("\0")
        return next(w.partition("=")[2] for w in words if w.startswith("EDGE_LLM_DIGEST="))

    def pids(self) -> tuple[str, str]:
        return self.show(ENGINE, "MainPID"), self.show(PROXY, "MainPID")

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sh(f"cat {STATE}/manifest.json"))
        return found

    def assert_is(self, state: State) -> None:
        """The host runs this state, its files and links are this state's, and it serves."""
        found = {path: self.sh(f"cat {path}") for path in state.files()}
        assert found == state.files()
        for kind in ("engine", "proxy"):
            link = self.sh(f"readlink /opt/edge-llm/{kind}/current").strip()
            assert link == f"releases/{getattr(state, kind)}"
        assert self.digest(ENGINE) == state.digest("engine")
        assert self.digest(PROXY) == state.digest("proxy")
        assert self.manifest()["plan_digest"] == state.request()["plan_digest"]
        assert "Hello" in self.sh("curl -sN -d '{}' http://127.0.0.1:8000/chat")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with lab_up("a", tmp_path_factory.mktemp("lab"), hosts=1) as own:
        ssh, *words = fleet.ssh_command(own.lab, own.fleet.hosts[0])
        # One login for all commands.
        shared = tmp_path_factory.mktemp("s") / "ssh"
        once = [f"-oControlPath={shared}", "-oControlMaster=auto", "-oControlPersist=60"]
        host = Host((ssh, *once, *words))
        host.sh(
            f"mkdir -p /opt/edge-llm/bin && cat > {PROGRAM} && chmod 755 {PROGRAM}",
            agent_program(),
        )
        yield host


@pytest.fixture
def bare(host: Host) -> Host:
    """The host as if nothing had ever been rolled out."""
    host.sh(
        f"for u in {SOCKET} {PROXY} {ENGINE}; do systemctl disable -q --now $u 2>/dev/null; "
        f"systemctl reset-failed $u 2>/dev/null; rm -f {UNITS}/$u; done; rm -rf {STATE} "
        "/etc/edge-llm /opt/edge-llm/engine /opt/edge-llm/proxy /opt/edge-llm/models; "
        "systemctl daemon-reload"
    )
    return host


@pytest.fixture
def good(host: Host) -> Host:
    """The host with the good state live."""
    result = host.roll_out(GOOD)
    assert result["ok"], result
    return host


def test_first_install_serves_and_says_how(bare: Host) -> None:
    result = bare.roll_out(GOOD)
    assert result["ok"]
    assert result["serving"]
    assert not result["rolled_back"]
    assert result["restarted"] == [ENGINE, SOCKET, PROXY]
    bare.assert_is(GOOD)
    gate = result["gate"]
    assert gate["first_token_ms"] > 0
    assert gate["total_ms"] >= gate["first_token_ms"]
    assert gate["tokens"] == 3
    assert gate["engine_build"] == "b1-good"
    assert gate["restarts"] == {ENGINE: 0, PROXY: 0}
    assert gate["units"] == dict.fromkeys((ENGINE, SOCKET, PROXY), "active")
    for unit in (ENGINE, SOCKET, PROXY):
        assert bare.show(unit, "UnitFileState") == "enabled"
    assert bare.manifest()["gate"] == gate
    assert json.loads(bare.sh(f"cat {STATE}/last-activation.json"))["ok"]
    # The copy holds secrets.
    assert bare.sh(f"stat -c %a {STATE}/good {STATE}/good/state.json").split() == ["700", "600"]


def test_memory_is_the_engines_own(good: Host) -> None:
    gate = good.edge_host("probe", GOOD)["gate"]
    assert gate["memory"]["max"] == 200 << 20
    # One Python process: some megabytes, and not what the whole host uses.
    assert 1 << 20 < gate["memory"]["anon"] < 100 << 20
    assert gate["memory"]["anon"] <= gate["memory"]["current"] <= gate["memory"]["max"]


def test_the_same_again_restarts_nothing(good: Host) -> None:
    pids = good.pids()
    result = good.roll_out(GOOD)
    assert result["ok"]
    assert result["restarted"] == []
    assert good.pids() == pids


def test_probe_changes_nothing(good: Host) -> None:
    listing = "find / -xdev -path /proc -prune -o -newer /run/before -type f -print | grep edge"
    good.sh("touch /run/before")
    pids = good.pids()
    result = good.edge_host("probe", GOOD)
    assert result["ok"]
    assert result["gate"]["tokens"] == 3
    assert good.pids() == pids
    assert good.sh(f"{listing} || true") == ""


def test_a_changed_proxy_restarts_the_proxy_alone_and_refuses_nobody(good: Host) -> None:
    engine, proxy = good.pids()
    since = good.show(SOCKET, "ActiveEnterTimestampMonotonic")
    clients = subprocess.Popen(
        good.command(
            "while [ ! -e /run/enough ]; do curl -sfN -d {} http://127.0.0.1:8000/chat "
            ">/dev/null || echo $?; done; rm /run/enough"
        ),
        stdout=subprocess.PIPE,
    )
    result = good.roll_out(replace(GOOD, words="two"))
    good.sh("touch /run/enough")
    failures = clients.communicate(timeout=60)[0].decode().split()
    assert result["ok"]
    assert result["restarted"] == [PROXY]
    assert good.show(ENGINE, "MainPID") == engine
    assert good.show(PROXY, "MainPID") != proxy
    assert good.show(SOCKET, "ActiveEnterTimestampMonotonic") == since
    # The stand-in drops the one answer that it is giving; nobody is refused (curl's 7).
    assert "7" not in failures
    assert len(failures) <= 1


def test_a_changed_engine_restarts_the_engine_alone(good: Host) -> None:
    _, proxy = good.pids()
    state = replace(GOOD, engine="better")
    result = good.roll_out(state)
    assert result["ok"]
    assert result["restarted"] == [ENGINE]
    assert good.show(PROXY, "MainPID") == proxy
    good.assert_is(state)


@pytest.mark.parametrize("requires", [GOOD.requires, ""], ids=["requires", "alone"])
def test_a_changed_socket_is_bound_anew(good: Host, requires: str) -> None:
    """Also where systemd does not stop the service, which holds the socket, by itself."""
    state = replace(GOOD, requires=requires)
    assert good.roll_out(state)["ok"]
    result = good.roll_out(replace(state, socket_note="second"))
    assert result["ok"], result
    assert result["restarted"] == [SOCKET, PROXY]
    assert good.show(SOCKET, "Description") == "Socket (second)"


def test_a_unit_edited_by_hand_and_started_so_is_started_again(good: Host) -> None:
    """The digest in the process is right, but it was not started by the file that is there now."""
    good.sh(
        f"sed -i s/MemoryMax=200M/MemoryMax=90M/ {UNITS}/{ENGINE}; systemctl daemon-reload; "
        f"systemctl restart {ENGINE}"
    )
    good.put(GOOD.files())
    # As after a rollout that died here: the changed unit is loaded, and not started.
    good.sh("systemctl daemon-reload")
    result = good.edge_host("activate", GOOD)
    assert result["ok"]
    assert result["restarted"] == [ENGINE]
    assert result["gate"]["memory"]["max"] == 200 << 20


@pytest.mark.parametrize(
    ("bad", "reason", "line"),
    [
        (
            replace(GOOD, engine="crash"),
            "keeps crashing (it ended: exit-code, exit status 1)",
            "boom: this",
        ),
        (replace(GOOD, engine="sick", gate_timeout_s=4), "not healthy after 4 s", "engine sick"),
        (replace(GOOD, engine="empty"), "the answer was empty", "POST /chat"),
        (replace(GOOD, engine="hang", gate_timeout_s=4), "did not end within 4 s", "engine hang"),
        (replace(GOOD, proxy="perr"), "ended with an error: no luck", "POST /chat"),
    ],
    ids=["crash", "sick", "empty", "hang", "error"],
)
def test_a_bad_state_is_left_for_the_last_good_one(
    good: Host, bad: State, reason: str, line: str
) -> None:
    before = good.sh(f"stat -c '%n %a %U %G' {' '.join(GOOD.files())}")
    result = good.roll_out(replace(bad, words="bad", note="bad"))
    assert not result["ok"]
    assert result["rolled_back"]
    assert result["serving"]
    assert reason in result["reason"]
    assert any(line in entry for entry in result["journal"]), result["journal"]
    assert len(result["journal"]) <= 20
    assert result["gate"]["engine_build"] == "b1-good"
    good.assert_is(GOOD)
    # Modes and owners, too: nothing looks changed to the next rollout.
    assert good.sh(f"stat -c '%n %a %U %G' {' '.join(GOOD.files())}") == before
    assert good.roll_out(GOOD)["restarted"] == []


def test_a_good_state_that_hangs_is_restarted(good: Host) -> None:
    engine, _ = good.pids()
    good.sh(f"kill -STOP {engine}")
    state = replace(GOOD, gate_timeout_s=4)
    assert "is not healthy after 4 s" in good.edge_host("probe", state)["reason"]
    assert good.show(ENGINE, "MainPID") == engine
    result = good.edge_host("activate", state)
    assert not result["ok"]
    assert result["serving"]
    assert not result["rolled_back"]
    assert "the same configuration serves again" in result["reason"]
    good.assert_is(GOOD)


def test_a_file_that_only_the_bad_state_has_is_removed(good: Host) -> None:
    extra = f"{UNITS}/{ENGINE}.d/limits.conf"
    request = replace(GOOD, engine="crash", note="bad").request()
    request["files"].append(extra)
    good.put({**replace(GOOD, engine="crash", note="bad").files(), extra: "[Service]\nNice=5\n"})
    good.put(replace(GOOD, engine="crash").releases())
    answer = good.command(f"{PROGRAM} activate")
    done = subprocess.run(answer, input=json.dumps(request).encode(), capture_output=True)
    assert json.loads(done.stdout)["rolled_back"]
    assert good.sh(f"test -e {extra} || echo gone").strip() == "gone"
    good.assert_is(GOOD)


def test_an_incomplete_release_disturbs_nothing(good: Host) -> None:
    pids = good.pids()
    state = replace(GOOD, engine="half", note="bad")
    good.put({**state.releases(), **state.files()})
    good.sh("rm /opt/edge-llm/engine/releases/half/.complete")
    result = good.edge_host("activate", state)
    assert not result["ok"]
    assert result["serving"]
    assert "engine release" in result["reason"]
    assert "not complete" in result["reason"]
    assert result["restarted"] == []
    assert good.pids() == pids
    good.assert_is(GOOD)


def test_another_configuration_than_told_is_not_taken_for_it(good: Host) -> None:
    """What runs is read from the process: a drop-in that changes the digest is found."""
    drop_in = f"/run/systemd/system/{PROXY}.d/other.conf"
    good.put({drop_in: "[Service]\nEnvironment=EDGE_LLM_DIGEST=other\n"})
    result = good.edge_host("activate", GOOD)
    good.sh(f"rm {drop_in}; systemctl daemon-reload")
    assert not result["ok"]
    assert f"{PROXY} answers, but runs other, not {GOOD.digest('proxy')}" in result["reason"]


def test_a_bad_first_install_is_stopped(bare: Host) -> None:
    result = bare.roll_out(replace(GOOD, engine="crash"))
    assert not result["ok"]
    assert not result["serving"]
    assert not result["rolled_back"]
    assert "no earlier good state" in result["reason"]
    assert "stopped until the next rollout" in result["reason"]
    assert any("boom" in line for line in result["journal"])
    for unit in (ENGINE, SOCKET, PROXY):
        assert bare.show(unit, "ActiveState") in ("inactive", "failed")
        assert bare.show(unit, "UnitFileState") == "disabled"
    assert bare.sh(f"ls {STATE}").split() == ["last-activation.json"]
    # The next rollout brings it up.
    assert bare.roll_out(GOOD)["ok"]
    bare.assert_is(GOOD)


# Runs the installed program, and kills it by SIGKILL at the named call.
KILLED = """
import os, signal, sys
sys.path.insert(0, {program!r})
from edge_host.__main__ import main
from edge_host.gate import Gate
name, when, words = {name!r}, {when!r}, {words!r}
modules = [module for key, module in sys.modules.items() if key.startswith("edge_host.")]
owners = [owner for owner in (Gate, *modules) if hasattr(owner, name)]
(real,) = {{getattr(owner, name) for owner in owners}}
def killed(*args, **more):
    here = all(word in str(args) for word in words)
    if here and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    value = real(*args, **more)
    if here:
        os.kill(os.getpid(), signal.SIGKILL)
    return value
for owner in owners:
    setattr(owner, name, killed)
sys.argv = ["edge-host", "activate"]
sys.exit(main())
"""

NEXT = replace(GOOD, engine="next", proxy="nextp", words="next", note="next")
BAD = replace(NEXT, engine="empty")


@pytest.mark.parametrize(
    ("state", "name", "when", "words"),
    [
        (NEXT, "check", "after", ()),
        (NEXT, "point", "after", ("engine",)),
        (NEXT, "systemctl", "after", ("daemon-reload",)),
        (NEXT, "systemctl", "after", ("'restart'", ENGINE)),
        (NEXT, "systemctl", "before", ("'restart'", PROXY)),
        (NEXT, "prime_slots", "after", ()),
        (NEXT, "ask", "before", ()),
        (NEXT, "write_json", "before", ("good/state.json",)),
        (NEXT, "write_json", "before", ("manifest.json",)),
        (NEXT, "prune", "before", ()),
        (BAD, "go_back", "before", ()),
        (BAD, "write_atomic", "after", (f"{UNITS}/{ENGINE}",)),
        (BAD, "restore", "after", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_killed_in_the_middle_is_healed_by_the_next_run(
    good: Host, state: State, name: str, when: str, words: tuple[str, ...]
) -> None:
    good.put({**state.releases(), **state.files()})
    code = KILLED.format(program=PROGRAM, name=name, when=when, words=words)
    good.put({"/run/killed.py": code})
    done = subprocess.run(
        good.command("systemd-run --quiet --collect --wait --pipe python3 /run/killed.py"),
        input=json.dumps(state.request()).encode(),
        capture_output=True,
    )
    assert done.stdout == b""
    assert done.returncode != 0
    if state == BAD:
        result = good.roll_out(BAD)
        assert not result["ok"]
        assert result["rolled_back"]
        good.assert_is(GOOD)
    else:
        assert good.roll_out(NEXT)["ok"]
        good.assert_is(NEXT)
        assert good.roll_out(NEXT)["restarted"] == []


def test_it_goes_on_when_the_connection_dies(good: Host) -> None:
    good.put({**NEXT.releases(), **NEXT.files()})
    # A connection of its own.
    ssh, *words = good.command(f"systemd-run --quiet --collect --wait --pipe {PROGRAM} activate")
    connection = subprocess.Popen(
        [ssh, "-oControlPath=none", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert connection.stdin is not None
    assert connection.stdout is not None
    assert connection.stderr is not None
    connection.stdin.write(json.dumps(NEXT.request()).encode())
    connection.stdin.close()
    line = connection.stderr.readline()
    connection.kill()
    connection.wait()
    connection.stdout.close()
    connection.stderr.close()
    assert b"releases/next" in line
    last = f"{STATE}/last-activation.json"
    text = good.sh(f"until test -e {last}; do sleep 0.1; done; cat {last}")
    assert json.loads(text)["plan_digest"] == NEXT.request()["plan_digest"]
    assert json.loads(text)["ok"]
    good.assert_is(NEXT)


def test_old_releases_go_and_the_newest_stay(good: Host) -> None:
    for release in ("r1", "r2", "r3", "r4"):
        assert good.roll_out(replace(GOOD, engine=release))["ok"]
    kept = good.sh("ls /opt/edge-llm/engine/releases").split()
    assert kept == ["r2", "r3", "r4"]


# --- the engine's key ----------------------------------------------------------------------------

KEY = "/etc/edge-llm/engine.env"


def key_of(host: Host) -> str:
    line = host.sh(f"cat {KEY}")
    assert re.fullmatch(r"LLAMA_API_KEY=[0-9a-f]{64}\n", line)
    assert host.sh(f"stat -c '%a %U:%G' {KEY}") == "600 root:root\n"
    return line.strip().partition("=")[2]


def test_the_engines_key_is_made_once_and_told_to_nobody(bare: Host) -> None:
    result = bare.roll_out(GOOD)
    key = key_of(bare)
    assert key not in json.dumps(result)
    # By standard input: sudo writes what it runs into the journal.
    places = f"{STATE} {UNITS} /run/systemd"
    assert bare.sh(f"grep -rlf - {places} || true", key.encode()) == ""
    assert key not in bare.sh("journalctl -b -o export --no-pager | tr -d '\\000'")
    before = bare.pids()
    assert bare.edge_host("activate", GOOD)["restarted"] == []
    assert (key_of(bare), bare.pids()) == (key, before)


BROKEN_KEY = {
    "lost": f"rm {KEY}",
    "empty": f": > {KEY}",
    "cut off": f"truncate -s 40 {KEY}",
    "open to others": f"chmod 644 {KEY}",
    "somebody else's": f"chown nobody {KEY}",
    "a link": f"mv {KEY} /root/key; ln -s /root/key {KEY}",
}


@pytest.mark.parametrize("how", BROKEN_KEY)
def test_a_key_that_cannot_be_trusted_is_replaced_and_used(good: Host, how: str) -> None:
    key = key_of(good)
    good.sh(BROKEN_KEY[how])
    result = good.edge_host("activate", GOOD)
    assert result["ok"]
    assert result["restarted"] == [ENGINE, PROXY]
    assert key_of(good) != key
    good.assert_is(GOOD)


def test_a_run_that_was_killed_after_making_the_key_does_not_lose_the_restart(good: Host) -> None:
    good.sh(f"printf 'LLAMA_API_KEY=%064d\\n' 7 > {KEY}")
    probe = good.edge_host("probe", GOOD)
    assert not probe["ok"]
    assert "status 401" in probe["reason"] or "another key" in probe["reason"]
    assert good.edge_host("activate", GOOD)["restarted"] == [ENGINE, PROXY]
    good.assert_is(GOOD)


def test_the_key_outlives_a_state_that_fails(good: Host) -> None:
    key = key_of(good)
    result = good.roll_out(replace(GOOD, engine="crash"))
    assert result["rolled_back"]
    assert key_of(good) == key
    good.assert_is(GOOD)


def test_a_host_goes_back_to_a_state_that_knew_no_key(bare: Host) -> None:
    """As after the first rollout of this version fails: the old units take no key."""
    old = replace(GOOD, engine="keyless", proxy="old", key=False)
    assert bare.roll_out(old)["ok"]
    result = bare.roll_out(replace(GOOD, engine="crash"))
    assert result["rolled_back"]
    assert result["serving"]
    bare.assert_is(old)
    # And forward: both are restarted with the key.
    assert bare.roll_out(GOOD)["restarted"] == [ENGINE, PROXY]
    bare.assert_is(GOOD)
