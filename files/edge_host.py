#!/usr/bin/env python3
"""edge-host: makes a new configuration of this host live, proves it, goes back if it fails.

    edge-host activate < request.json    switch, restart what differs, prove; on failure go back
    edge-host probe    < request.json    only prove that the host serves; changes nothing

The result is one line of JSON on stdout (and, for activate, in /var/lib/edge-llm/
last-activation.json); the exit status is 0 when the wanted configuration serves, otherwise 1.
Every step may be repeated: a run that was killed at any point is healed by the next one.
Python 3.10 or later, standard library only: it runs on hosts that have nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.client
import json
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

FORMAT = 1
ENGINE, PROXY, SOCKET = "llama-server.service", "chat-proxy.service", "chat-proxy.socket"
UNITS = (ENGINE, SOCKET, PROXY)
KINDS = ("engine", "proxy")
QUESTION = {"prompt": "Say hello in one short sentence.", "max_tokens": 24}
CRASHES = 3  # restarts by systemd while we watch: it will not come up
JOURNAL_LINES = 20
STALE_S = 86_400  # what a transfer left half done a day ago is nobody's any more
STOP_S = 60  # a service may take this long to end the answers that it is giving
POLL_S = 0.25
DOWN = ("inactive", "failed")
T = TypeVar("T")


class Failed(Exception):  # noqa: N818
    """The wanted state cannot be reached: why, and the units whose journal says more."""

    def __init__(self, reason: str, *units: str) -> None:
        super().__init__(reason)
        self.units = units


@dataclass(frozen=True)
class Paths:
    """Where everything is. Another root is for tests."""

    root: Path = Path("/")
    systemctl: str = "systemctl"
    journalctl: str = "journalctl"

    def at(self, path: str) -> Path:
        """A host's absolute path, below the root."""
        return self.root / path.lstrip("/")

    def current(self, kind: str) -> Path:
        """The link that chooses the release of "engine" or "proxy"."""
        return self.at(f"/opt/edge-llm/{kind}/current")

    def releases(self, kind: str) -> Path:
        """The folder of all releases of "engine" or "proxy"."""
        return self.at(f"/opt/edge-llm/{kind}/releases")

    @property
    def models(self) -> Path:
        return self.at("/opt/edge-llm/models")

    @property
    def state(self) -> Path:
        return self.at("/var/lib/edge-llm")

    @property
    def good(self) -> Path:
        return self.state / "good" / "state.json"

    @property
    def lock(self) -> Path:
        return self.at("/run/lock/edge-llm.lock")


@dataclass(frozen=True)
class Wanted:
    """The state that a request asks for; `raw` is the request as it came."""

    raw: dict[str, Any]
    plan_digest: str
    releases: dict[str, str]
    model_path: str
    digests: dict[str, str]
    files: tuple[str, ...]
    enable: tuple[str, ...]
    engine_url: str
    proxy_url: str
    slots: int
    gate_timeout_s: float
    keep_releases: int
    proxy_header_file: str  # a root-only file with one line "Name: value"; "" for none

    @classmethod
    def parse(cls, raw: Any) -> Wanted:
        """Raises Failed if the request is not one of format 1."""
        if not isinstance(raw, dict):
            raise Failed("the request cannot be used: it is no JSON object")
        try:
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']!r}, this edge-host knows {FORMAT}")
            wanted = cls(
                raw=raw,
                plan_digest=str(raw["plan_digest"]),
                releases={kind: str(raw["releases"][kind]) for kind in KINDS},
                model_path=str(raw["model"]["path"]),
                digests={unit: str(raw["digests"][name(unit)]) for unit in (ENGINE, PROXY)},
                files=tuple(map(str, raw["files"])),
                enable=tuple(map(str, raw["enable"])),
                engine_url=str(raw["engine_url"]),
                proxy_url=str(raw["proxy_url"]),
                slots=int(raw["slots"]),
                gate_timeout_s=float(raw["gate_timeout_s"]),
                keep_releases=int(raw["keep_releases"]),
                proxy_header_file=str(raw.get("proxy_header_file", "")),
            )
        except KeyError as error:
            raise Failed(f"the request cannot be used: it has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the request cannot be used: {error}") from error
        for release in wanted.releases.values():
            if not re.fullmatch(r"\w[\w.+-]*", release):
                raise Failed(f"the request cannot be used: release id {release!r}")
        for path in (*wanted.files, wanted.model_path):
            if not path.startswith("/") or ".." in path.split("/"):
                raise Failed(f"the request cannot be used: {path!r} is not an absolute path")
        return wanted


@dataclass
class Result:
    """What is printed. `gate` has the figures of what serves now."""

    verb: str
    plan_digest: str = ""
    time: str = ""
    ok: bool = False
    restarted: list[str] = field(default_factory=list)
    rolled_back: bool = False
    serving: bool = False
    reason: str = ""
    journal: list[str] = field(default_factory=list)
    gate: dict[str, Any] = field(default_factory=dict)


def name(unit: str) -> str:
    """A unit's name without its type, as the digests are named."""
    return unit.rpartition(".")[0]


def say(text: str) -> None:
    """One line on stderr; whoever listened may be gone."""
    with contextlib.suppress(OSError):
        os.write(2, f"edge-host: {text}\n".encode(errors="replace"))


def now() -> str:
    """The time, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# --- files ---------------------------------------------------------------------------------------


def write_atomic(
    path: Path, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file's content, mode and (uid, gid) at once, and on the disk before returning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.edge-host")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", mode)


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(link: Path, target: str) -> None:
    """Let a link name `target`, from one moment to the next."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    say(f"{link} -> {target}")
    temporary = link.with_name(f".{link.name}.edge-host")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    sync_directory(link.parent)


def snapshot(paths: Paths, files: Iterable[str]) -> list[dict[str, Any]]:
    """Content, mode and owner of files; content None for one that does not exist."""
    found: list[dict[str, Any]] = []
    for path in files:
        real = paths.at(path)
        if not real.exists():
            found.append({"path": path, "content": None})
            continue
        status = real.stat()
        found.append(
            {
                "path": path,
                # Readable, and any bytes come back as they were.
                "content": real.read_bytes().decode("utf-8", "surrogateescape"),
                "mode": status.st_mode & 0o7777,
                "uid": status.st_uid,
                "gid": status.st_gid,
                "mtime_ns": status.st_mtime_ns,
            }
        )
    return found


def restore(
    paths: Paths, good: list[dict[str, Any]], managed: Iterable[str], *, times: bool
) -> None:
    """Make files what a snapshot says; managed files that it does not know are removed.

    `times`: give them their old times as well, because what runs was started from them. Where it
    was not, a file that is newer than a process is what tells a later run to restart it.
    """
    present = {entry["path"]: entry for entry in good if entry["content"] is not None}
    for path in sorted({*managed, *(entry["path"] for entry in good)} - set(present)):
        if paths.at(path).exists():
            say(f"removing {path}")
            paths.at(path).unlink()
    for path, entry in present.items():
        found = snapshot(paths, [path])[0]
        if {**found, "mtime_ns": 0} != {**entry, "mtime_ns": 0}:
            say(f"restoring {path}")
            data = entry["content"].encode("utf-8", "surrogateescape")
            write_atomic(paths.at(path), data, entry["mode"], (entry["uid"], entry["gid"]))
            if times:
                os.utime(paths.at(path), ns=(entry["mtime_ns"], entry["mtime_ns"]))


def load_good(paths: Paths) -> tuple[Wanted, list[dict[str, Any]]] | None:
    """The last good state and its files, or None where there is none."""
    try:
        good = json.loads(paths.good.read_bytes())
        return Wanted.parse(good["wanted"]), list(good["files"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, Failed) as error:
        say(f"the copy of the last good state cannot be used: {error!r}")
        return None


def keep_good(paths: Paths, wanted: Wanted, gate: dict[str, Any]) -> None:
    """Record that the wanted state is good: first the copy to go back to, then the manifest."""
    paths.good.parent.mkdir(parents=True, exist_ok=True)
    paths.good.parent.chmod(0o700)  # the copies hold secrets
    good = {"time": now(), "wanted": wanted.raw, "files": snapshot(paths, wanted.files)}
    write_json(paths.good, good, 0o600)
    kept = {key: wanted.raw[key] for key in ("releases", "model", "digests", "plan_digest")}
    write_json(
        paths.state / "manifest.json", {"format": FORMAT, **kept, "time": now(), "gate": gate}
    )


def prune(paths: Paths, wanted: Wanted) -> None:
    """Remove old releases, old models, and what transfers left half done."""
    keep = [(paths.releases(kind), ".complete", wanted.releases[kind]) for kind in KINDS]
    keep.append((paths.models, ".verified", Path(wanted.model_path).parent.name))
    # Archives that arrived and were unpacked are gone; what is left there was never finished.
    keep += [(paths.at(f"/opt/edge-llm/{kind}/incoming"), ".complete", "") for kind in KINDS]
    links = {paths.current(kind).resolve() for kind in KINDS}
    for folder, marker, chosen in keep:
        old: list[Path] = []
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name == chosen or entry.resolve() in links:
                continue
            if (entry / marker).exists() and not entry.name.endswith((".tmp", ".part")):
                old.append(entry)
            elif entry.lstat().st_mtime < time.time() - STALE_S:
                remove(entry)
        old.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in old[wanted.keep_releases :]:
            remove(entry)


def remove(entry: Path) -> None:
    """Remove a file or tree; a tree that is half removed is never taken for whole."""
    say(f"removing {entry}")
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    dying = entry if entry.name.endswith(".tmp") else entry.with_name(f"{entry.name}.tmp")
    if dying != entry:
        shutil.rmtree(dying, ignore_errors=True)  # of a run that was killed here
        entry.rename(dying)
    shutil.rmtree(dying)


@contextlib.contextmanager
def locked(paths: Paths, verb: str, wait_s: float) -> Iterator[None]:
    """One activation at a time; probes wait for it, too. Says whom it waits for.

    Raises Failed when the lock was not to be had within `wait_s` seconds.
    """
    paths.lock.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o644), "r+") as file:
        kind = fcntl.LOCK_EX if verb == "activate" else fcntl.LOCK_SH
        start, said = time.monotonic(), 0.0
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - start
                file.seek(0)
                holder = file.read().strip() or "an unknown process"
                if waited > wait_s:
                    raise Failed(f"another edge-host is at work on this host: {holder}") from None
                if waited >= said + 2:
                    say(f"waiting for another edge-host: {holder}")
                    said = waited + 28
                time.sleep(POLL_S)
        file.seek(0)
        file.truncate()
        file.write(f"{verb}, process {os.getpid()}, since {now()}\n")
        file.flush()
        yield


# --- systemd -------------------------------------------------------------------------------------

PROPERTIES = (
    "Id,ActiveState,Result,MainPID,NRestarts,NeedDaemonReload,UnitFileState,FragmentPath,"
    "DropInPaths,EnvironmentFiles,ExecMainStartTimestampMonotonic,ActiveEnterTimestampMonotonic,"
    "ExecMainCode,ExecMainStatus"
)
Shown = dict[str, dict[str, str]]


def systemctl(paths: Paths, *arguments: str, timeout_s: float = 90) -> str:
    """Run systemctl; raises Failed with what it said."""
    command = [paths.systemctl, *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"systemctl {' '.join(arguments)}: no end after {timeout_s:.0f} s") from None
    if done.returncode != 0:
        words = (
            " ".join(done.stderr.decode(errors="replace").split())
            or f"exit status {done.returncode}"
        )
        raise Failed(f"systemctl {' '.join(arguments)}: {words[:300]}")
    return done.stdout.decode(errors="replace")


def show(paths: Paths, *units: str) -> Shown:
    """The state of units, as systemd names its properties."""
    text = systemctl(paths, "show", "-p", PROPERTIES, *units)
    shown: Shown = {}
    for unit, block in zip(units, text.strip().split("\n\n"), strict=True):
        properties: dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            properties[key] = f"{properties[key]} {value}" if key in properties else value
        shown[unit] = properties
    return shown


def running(paths: Paths, shown: Shown, unit: str) -> tuple[int, dict[str, str]]:
    """A service's main process and its environment; (0, {}) if it does not run."""
    properties = shown[unit]
    pid = int(properties.get("MainPID") or 0)
    if properties.get("ActiveState") not in ("active", "activating", "reloading") or pid == 0:
        return 0, {}
    try:
        text = paths.at(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return 0, {}
    return pid, dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


def running_digest(paths: Paths, shown: Shown, unit: str) -> str:
    return running(paths, shown, unit)[1].get("EDGE_LLM_DIGEST", "")


def changed_since_start(paths: Paths, properties: dict[str, str], managed: Iterable[str]) -> str:
    """The managed file, if any, that a unit was started without: it is newer than the start."""
    since = "ExecMainStart" if "MainPID" in properties else "ActiveEnter"
    started = int(properties.get(f"{since}TimestampMonotonic") or 0) / 1e6
    # By the monotonic clock: a Pi has no clock of its own and starts services in the past.
    started_at = time.time() - (time.monotonic() - started)
    keys = ("FragmentPath", "DropInPaths", "EnvironmentFiles")
    own = {word for key in keys for word in properties.get(key, "").split()}
    for path in sorted(own.intersection(managed)):
        real = paths.at(path)
        if real.exists() and real.stat().st_mtime > started_at:
            return path
    return ""


def why_restart(paths: Paths, wanted: Wanted, shown: Shown, before: Shown, unit: str) -> str:
    """Why what runs is not what is wanted; "" if it is. `before` is from before the reload."""
    if shown[unit].get("ActiveState") != "active":
        return f"it is {shown[unit].get('ActiveState')}"
    if unit in wanted.digests:
        digest = running_digest(paths, shown, unit)
        if digest != wanted.digests[unit]:
            return f"it runs {digest or 'an unknown configuration'}, not {wanted.digests[unit]}"
    if before[unit].get("NeedDaemonReload") == "yes":
        return "its unit was changed on the disk"
    path = changed_since_start(paths, shown[unit], wanted.files)
    return f"{path} was changed after its start" if path else ""


def converge(paths: Paths, wanted: Wanted, restarted: list[str], *, force: bool = False) -> None:
    """Links, units and processes become what is wanted; adds to `restarted`. Raises Failed."""
    before = show(paths, *UNITS)
    for kind in KINDS:
        point(paths.current(kind), f"releases/{wanted.releases[kind]}")
    systemctl(paths, "daemon-reload")
    shown = show(paths, *wanted.enable)
    if missing := [u for u in wanted.enable if shown[u].get("UnitFileState") != "enabled"]:
        say(f"enabling {' '.join(missing)}")
        systemctl(paths, "enable", "--quiet", *missing)
    shown = show(paths, *UNITS)
    reasons = {unit: why_restart(paths, wanted, shown, before, unit) for unit in UNITS}
    if force:
        reasons = {**reasons, ENGINE: "going back", PROXY: "going back"}
    if reasons[SOCKET]:
        reasons[PROXY] = reasons[PROXY] or "its socket is restarted"
    for unit in (unit for unit in UNITS if reasons[unit]):
        say(f"restarting {unit}: {reasons[unit]}")
        if unit == SOCKET:
            # It cannot be bound anew while the service holds it. Clients are refused meanwhile.
            systemctl(paths, "stop", SOCKET, PROXY, timeout_s=STOP_S + 30)
        with contextlib.suppress(Failed):  # a unit that never failed has nothing to reset
            systemctl(paths, "reset-failed", unit)
        restarted.append(unit)
        try:
            systemctl(paths, "restart", unit, timeout_s=wanted.gate_timeout_s + STOP_S)
        except Failed as error:
            raise Failed(f"{unit} did not start: {error}", unit) from error


def journal(paths: Paths, units: Iterable[str]) -> list[str]:
    """The last lines of the units' journal."""
    chosen = [word for unit in units for word in ("-u", unit)]
    if not chosen:
        return []
    lines = ["-n", str(JOURNAL_LINES), "--no-pager", "-q", "-o", "short-iso"]
    try:
        for arguments in (["--sync"], [*chosen, *lines]):
            done = subprocess.run(
                [paths.journalctl, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"(the journal could not be read: {error})"]
    return done.stdout.decode(errors="replace").splitlines()


# --- the gate ------------------------------------------------------------------------------------


def sse_events(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(name, data) of each event of an event stream, as it comes; comments are dropped."""
    kind, data = "", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "", []
        elif key == "event":
            kind = value
        elif key == "data":
            data.append(value)


def read_answer(lines: Iterable[bytes], start: float) -> dict[str, Any]:
    """Read /chat's stream to its last event; `start` by time.monotonic(). Raises Failed."""
    times: list[float] = []
    for kind, data in sse_events(lines):
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise Failed("the answer holds an event that is no JSON object", ENGINE, PROXY)
        if kind == "error":
            raise Failed(f"the answer ended with an error: {error_text(event)}", ENGINE, PROXY)
        if event.get("done"):
            if not times:
                raise Failed("the answer was empty", ENGINE, PROXY)
            total = time.monotonic() - start
            usage = event.get("usage")
            counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
            tokens = counted if isinstance(counted, int) else len(times)
            spent = times[-1] - times[0]
            return {
                "first_token_ms": round((times[0] - start) * 1000, 1),
                "total_ms": round(total * 1000, 1),
                "tokens": tokens,
                "tokens_per_s": round((tokens - 1) / spent, 1) if spent and tokens > 1 else None,
            }
        if isinstance(event.get("text"), str) and event["text"].strip():
            times.append(time.monotonic())
    raise Failed("the answer broke off before its end", ENGINE, PROXY)


def error_text(event: Any) -> str:
    """A proxy's or engine's words for what went wrong, in one line."""
    inner = event.get("error", event) if isinstance(event, dict) else event
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(text).split())[:200]


def throw(error: Exception) -> NoReturn:
    """An exception as a function."""
    raise error


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
            ended = self.exits.get(unit, "of itself")
            if state == "failed" or (state == "inactive" and unit != PROXY):
                raise Failed(f"{unit} is {state} (it ended: {ended})", unit)
            crashes = int(properties.get("NRestarts") or 0) - self.crashes.get(unit, 0)
            if crashes >= CRASHES:
                raise Failed(f"{unit} keeps crashing (it ended: {ended})", unit)

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
        self, url: str, path: str, body: Any = None, headers: Any = None, timeout_s: float = 1e6
    ) -> Iterator[http.client.HTTPResponse]:
        """GET, or POST where there is a body. Raises OSError and HTTPException."""
        parts = urlsplit(url)
        left = max(self.end - time.monotonic(), 0.1)
        connection = http.client.HTTPConnection(parts.netloc, timeout=min(timeout_s, left))
        with contextlib.closing(connection):
            connection.connect()
            if connection.sock is not None:
                self.sockets.append(connection.sock)
            sent = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
            if body is None:
                connection.request("GET", path, headers=sent)
            else:
                connection.request("POST", path, json.dumps(body).encode(), sent)
            with connection.getresponse() as response:
                yield response

    def engine_headers(self) -> dict[str, str]:
        """The engine's own key, which is in its environment, opens everything but /health."""
        _, environment = running(self.paths, show(self.paths, ENGINE), ENGINE)
        key = environment.get("LLAMA_API_KEY", "").split(",")[0]
        return {"Authorization": f"Bearer {key}"} if key else {}

    def prime_slots(self) -> None:
        """As many short requests at once as there are slots: each slot is slow once."""
        headers = self.engine_headers()
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}

        def one() -> None:
            path = "/v1/chat/completions"
            try:
                with self.request(self.wanted.engine_url, path, body, headers) as response:
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
        headers = {"Accept": "text/event-stream"}
        if self.wanted.proxy_header_file:
            line = self.paths.at(self.wanted.proxy_header_file).read_text().strip()
            key, _, value = line.partition(":")
            headers[key.strip()] = value.strip()
        refused_until = time.monotonic() + 5
        while True:
            start = time.monotonic()
            try:
                with self.request(self.wanted.proxy_url, "/chat", QUESTION, headers) as response:
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
        url, headers = self.wanted.engine_url, self.engine_headers()
        try:
            with self.request(url, "/props", headers=headers, timeout_s=10) as response:
                return str(json.loads(response.read())["build_info"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return None


def last_exit(properties: dict[str, str]) -> str:
    """How a unit's main process ended, as systemd saw it."""
    kind = {"1": "exit status", "2": "signal", "3": "signal"}.get(properties["ExecMainCode"])
    result = properties["Result"]
    return f"{result}, {kind} {properties['ExecMainStatus']}" if kind else result


def cpu_variant(paths: Paths, pid: int) -> str | None:
    """The CPU library that the engine has loaded ("alderlake"), from its memory map."""
    with contextlib.suppress(OSError):
        text = paths.at(f"/proc/{pid}/maps").read_text(errors="replace")
        if found := re.search(r"/libggml-cpu-([\w.]+?)\.so", text):
            return found[1]
    return None


def memory_group(paths: Paths, pid: int) -> tuple[int, Path] | None:
    """Version and directory of the control group that accounts a process's memory."""
    groups: dict[str, str] = {}  # controller to path; "" is version 2
    for line in paths.at(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    for line in paths.at("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            version, path = 1, groups["memory"]
        elif kind == "cgroup2" and "" in groups and "memory" not in groups:
            version, path = 2, groups[""]
        else:
            continue
        # The path counts from the hierarchy's root, or from a namespace's; the mount may show a
        # part of it. The right directory is the one that holds the process.
        shown = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
        directory = paths.at(mount) / shown
        with contextlib.suppress(OSError):
            if str(pid) in (directory / "cgroup.procs").read_text().split():
                return version, directory
    return None


def memory(paths: Paths, pid: int) -> dict[str, int | None]:
    """Bytes in use and allowed in a process's own control group; None for what is not known."""
    figures: dict[str, int | None] = dict.fromkeys(("current", "anon", "file", "max"))
    with contextlib.suppress(OSError, ValueError):
        if found := memory_group(paths, pid):
            version, group = found
            v1 = version == 1
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            usage = group / ("memory.usage_in_bytes" if v1 else "memory.current")
            figures["current"] = int(usage.read_text())
            figures["anon"] = int(stat["total_rss" if v1 else "anon"])
            figures["file"] = int(stat["total_cache" if v1 else "file"])
            limit = (group / ("memory.limit_in_bytes" if v1 else "memory.max")).read_text().strip()
            # Version 1 writes "no limit" as the largest number of pages.
            figures["max"] = None if limit == "max" or int(limit) >= 1 << 62 else int(limit)
    return figures


# --- the verbs -----------------------------------------------------------------------------------


def check(paths: Paths, wanted: Wanted) -> None:
    """Raises Failed if a part of the wanted state is not on this host."""
    for kind in KINDS:
        release = paths.releases(kind) / wanted.releases[kind]
        if not (release / ".complete").exists():
            raise Failed(f"the {kind} release {release} is not there, or not complete")
    if not paths.at(wanted.model_path).is_file():
        raise Failed(f"the model {wanted.model_path} is not there")


def activate(paths: Paths, wanted: Wanted, result: Result) -> None:
    """Make the wanted state live and prove it, or go back; fills in the result."""
    (paths.state / "last-activation.json").unlink(missing_ok=True)  # no answer until we have one
    touched = False
    try:
        check(paths, wanted)
        touched = True
        converge(paths, wanted, result.restarted)
        result.gate = Gate(paths, wanted, result.restarted).run()
    except Exception as error:  # whatever it was: a host that served must serve again
        result.reason = str(error) if isinstance(error, Failed) else repr(error)
        say(f"failed: {result.reason}")
        result.journal = journal(paths, error.units if isinstance(error, Failed) else UNITS)
        go_back(paths, wanted, result, touched=touched)
        return
    result.serving = True
    try:
        keep_good(paths, wanted, result.gate)
        result.ok = True
        prune(paths, wanted)
    except OSError as error:
        what = "old releases could not be removed" if result.ok else "it could not be recorded"
        result.reason = f"it serves, but {what}: {error}"
        say(result.reason)


def go_back(paths: Paths, wanted: Wanted, result: Result, *, touched: bool) -> None:
    """Return to the last good state; without one, stop what does not serve."""
    good = load_good(paths)
    if good is None:
        if not touched:
            result.reason += "; nothing was started or stopped"
            return
        # The socket first: a client would start the service again.
        for unit in (SOCKET, PROXY, ENGINE):
            with contextlib.suppress(Failed):
                systemctl(paths, "disable", "--quiet", "--now", unit)
        up = [u for u, p in show(paths, *UNITS).items() if p["ActiveState"] not in DOWN]
        result.reason += (
            "; there is no earlier good state to go back to: the services are disabled, and "
            + (f"could not be stopped: {' '.join(up)}" if up else "stopped until the next rollout")
        )
        say(result.reason)
        return
    state, files = good
    say(f"going back to the last good state ({state.plan_digest})")
    try:
        restore(paths, files, wanted.files, times=not touched)
        check(paths, state)
        converge(paths, state, result.restarted, force=touched)
        result.gate = Gate(paths, state, result.restarted).run()
        result.serving = True
        result.rolled_back = state.digests != wanted.digests
        if not result.rolled_back:
            result.reason += "; after a restart the same configuration serves again"
        say("the last good state serves again")
    except Exception as error:
        result.reason += f"; the last good state does not serve either: {error}"
        result.gate = {}
        say(result.reason)


def run(paths: Paths, verb: str, text: bytes) -> Result:
    """One call: reads the request, does what the verb says; never raises."""
    result = Result(verb)
    try:
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise Failed(f"the request cannot be used: it is no JSON ({error})") from error
        wanted = Wanted.parse(raw)
        result.plan_digest = wanted.plan_digest
        with locked(paths, verb, 2 * (wanted.gate_timeout_s + STOP_S)):
            if verb == "activate":
                activate(paths, wanted, result)
                result.time = now()
                write_json(paths.state / "last-activation.json", asdict(result))
            else:
                result.gate = Gate(paths, wanted).run()
                result.ok = result.serving = True
    except Failed as error:
        result.reason = str(error)
        result.journal = journal(paths, error.units)
    except Exception as error:
        result.reason = f"{result.reason}; edge-host itself failed: {error!r}".lstrip("; ")
        result.ok = False
    result.restarted = sorted(set(result.restarted), key=UNITS.index)
    result.time = now()
    return result


def main() -> int:
    """The command line."""
    if sys.argv[1:] not in (["activate"], ["probe"]):
        say("usage: edge-host activate|probe, with a request as JSON on stdin")
        return 1
    result = run(Paths(), sys.argv[1], sys.stdin.buffer.read())
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(asdict(result)).encode() + b"\n")
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
