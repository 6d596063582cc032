"""files/edge_host without systemd: files, links, lock, pruning, and what it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import edge_host
import pytest
from edge_host.__main__ import run
from edge_host.converge import why_restart
from edge_host.files import write_atomic
from edge_host.good import keep_good, load_good, restore, snapshot
from edge_host.lock import locked
from edge_host.paths import KINDS, Paths
from edge_host.releases import point, prune, remove
from edge_host.result import Failed, Result
from edge_host.systemd import show
from edge_host.units import ENGINE, PROXY, SOCKET
from edge_host.wanted import Wanted

from edge.agent import agent_program

FILES = Path(edge_host.__file__).parent.parent

# For what asks systemd: a program that knows one state, and writes down what it is told.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
[ "$1" = show ] || exit 0
shift 3
for unit; do cat "{state}/$unit"; echo; done
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A root in which nothing is yet, and a systemd that answers from files in it."""
    state = tmp_path / "systemd"
    state.mkdir()
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(log=tmp_path / "told", state=state))
    program.chmod(0o755)
    return Paths(tmp_path / "root", str(program), "true")


def unit(paths: Paths, name: str, **properties: str) -> None:
    """What the stand-in for systemd says about a unit."""
    first = {"Id": name, "ActiveState": "active", "Result": "success", "ExecMainCode": "0"}
    text = "".join(f"{key}={value}\n" for key, value in {**first, **properties}.items())
    (paths.root.parent / "systemd" / name).write_text(text)


def told(paths: Paths) -> list[str]:
    """What systemd was told to change."""
    log = paths.root.parent / "told"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if not line.startswith("show")]


def request(**more: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "plan_digest": "p1",
        "releases": {"engine": "e1", "proxy": "x1"},
        "model": {"path": "/opt/edge-llm/models/aa/m.gguf", "sha256": "aa", "name": "m"},
        "digests": {"llama-server": "d1", "chat-proxy": "d2"},
        "files": ["/etc/a", "/etc/b"],
        "enable": [ENGINE, SOCKET, PROXY],
        "engine_url": "http://127.0.0.1:1",
        "proxy_url": "http://127.0.0.1:1",
        "slots": 2,
        "gate_timeout_s": 1,
        "keep_releases": 2,
        **more,
    }


def write(path: Path, data: bytes = b"", age_s: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def release(folder: Path, name: str, age_s: float, marker: str = ".complete") -> None:
    write(folder / name / "program")
    if marker:
        write(folder / name / marker)
    os.utime(folder / name, (time.time() - age_s,) * 2)


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "this edge-host knows 1"),
        ({"releases": {"engine": "../../etc", "proxy": "x1"}}, "release id"),
        ({"releases": {"engine": "e1"}}, "it has no 'proxy'"),
        ({"files": ["etc/a"]}, "not an absolute path"),
        ({"files": ["/etc/../a"]}, "not an absolute path"),
        ({"slots": "many"}, "invalid literal"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Failed) as caught:
        Wanted.parse(request(**change))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"format": 1}'])
def test_what_is_no_request_still_gets_a_result(paths: Paths, text: bytes) -> None:
    result = run(paths, "activate", text)
    assert not result.ok
    assert result.reason
    assert not paths.root.exists()


# --- links and files -----------------------------------------------------------------------------


def test_a_link_is_replaced_and_left_alone_if_right(tmp_path: Path) -> None:
    link = tmp_path / "current"
    point(link, "releases/a")
    first = link.lstat().st_ino
    point(link, "releases/a")
    assert link.lstat().st_ino == first
    (tmp_path / ".current.edge-host").symlink_to("left by a killed run")
    point(link, "releases/b")
    assert link.readlink() == Path("releases/b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current"]


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    file = write(tmp_path / "file", b"old")
    with file.open("rb") as reader:
        write_atomic(file, b"new", 0o640)
        assert reader.read() == b"old"
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("times", [True, False])
def test_files_come_back_exactly(paths: Paths, times: bool) -> None:
    data = bytes(range(256)) + "Grüße, 你好\n".encode() + b"\xff\xfe\r\n"
    secret = write(paths.at("/etc/a"), data, age_s=1000)
    secret.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(secret, 12, 34)
    before = secret.stat()
    wanted = Wanted.parse(request())
    keep_good(paths, wanted, {})

    secret.write_bytes(b"changed")
    secret.chmod(0o777)
    write(paths.at("/etc/b"), b"only the bad state has this")
    write(paths.at("/etc/c"), b"and this")
    good = load_good(paths)
    assert good is not None
    state, files = good
    assert state == wanted
    now = Wanted.parse(request(files=["/etc/a", "/etc/b", "/etc/c"]))
    restore(paths, files, now, times=times)

    after = secret.stat()
    assert secret.read_bytes() == data
    assert after.st_mode == before.st_mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert (after.st_mtime_ns == before.st_mtime_ns) == times
    assert not paths.at("/etc/b").exists()
    assert not paths.at("/etc/c").exists()


def test_an_untouched_file_is_not_written(paths: Paths) -> None:
    inode = write(paths.at("/etc/a"), b"same").stat().st_ino
    restore(paths, snapshot(paths, ["/etc/a"]), Wanted.parse(request()), times=True)
    assert paths.at("/etc/a").stat().st_ino == inode


def test_a_revoked_key_does_not_come_back(paths: Paths) -> None:
    keys = write(paths.at("/etc/a"), b"old and new")
    good = snapshot(paths, ["/etc/a"])
    keys.write_bytes(b"new")
    now = Wanted.parse(request(newest=["/etc/a"]))
    restore(paths, good, now, times=True)
    assert keys.read_bytes() == b"new"
    # What the last good state cannot do without comes back all the same.
    keys.unlink()
    restore(paths, good, now, times=True)
    assert keys.read_bytes() == b"old and new"


def test_copies_and_manifest_are_for_the_right_eyes(paths: Paths) -> None:
    write(paths.at("/etc/a"), b"key")
    keep_good(paths, Wanted.parse(request()), {"tokens": 3})
    assert paths.good.stat().st_mode & 0o777 == 0o600
    assert paths.good.parent.stat().st_mode & 0o777 == 0o700
    manifest = json.loads((paths.state / "manifest.json").read_text())
    assert manifest.pop("time").endswith("Z")
    assert manifest == {
        "format": 1,
        "releases": {"engine": "e1", "proxy": "x1"},
        "model": request()["model"],
        "digests": request()["digests"],
        "plan_digest": "p1",
        "gate": {"tokens": 3},
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"wanted": {}, "files": []}'])
def test_a_damaged_copy_is_no_good_state(paths: Paths, text: str) -> None:
    write(paths.good, text.encode())
    assert load_good(paths) is None


# --- pruning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "marker"),
    [
        ("/opt/edge-llm/engine/releases", ".complete"),
        ("/opt/edge-llm/proxy/releases", ".complete"),
        ("/opt/edge-llm/models", ".verified"),
    ],
)
def test_the_newest_old_ones_are_kept(paths: Paths, folder: str, marker: str) -> None:
    wanted = Wanted.parse(
        request(
            releases={"engine": "now", "proxy": "now"},
            model={"path": "/opt/edge-llm/models/now/m.gguf", "sha256": "", "name": ""},
        )
    )
    where = paths.at(folder)
    # What is in use may be older than all that is not.
    release(where, "now", 9000, marker)
    for number in range(1, 5):
        release(where, f"old{number}", number * 100, marker)
    release(where, "begun", 3600, "")
    release(where, "forgotten", 90_000, "")
    release(where, "moving.tmp", 3600, "")
    release(where, "dead.tmp", 90_000, marker)
    write(where / "dead.part", age_s=90_000)
    write(where / "coming.part", age_s=3600)
    prune(paths, wanted)
    left = sorted(entry.name for entry in where.iterdir())
    assert left == ["begun", "coming.part", "moving.tmp", "now", "old1", "old2"]


def test_what_a_link_names_is_kept(paths: Paths) -> None:
    """Even if it is neither wanted nor new."""
    for kind in KINDS:
        release(paths.releases(kind), "linked", 9000)
        for number in range(3):
            release(paths.releases(kind), f"old{number}", number)
        point(paths.current(kind), "releases/linked")
    prune(paths, Wanted.parse(request()))
    for kind in KINDS:
        assert (paths.releases(kind) / "linked" / "program").exists()
        assert not (paths.releases(kind) / "old2").exists()


def test_an_archive_that_nobody_fetched_goes_after_a_day(paths: Paths) -> None:
    incoming = paths.at("/opt/edge-llm/engine/incoming")
    write(incoming / "e9.tar.gz.part", age_s=90_000)
    fresh = write(incoming / "e8.tar.gz", age_s=60)
    prune(paths, Wanted.parse(request()))
    assert list(incoming.iterdir()) == [fresh]


def test_a_half_removed_release_is_never_whole(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = paths.releases("engine")
    release(releases, "old", 0)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **more: None)
        remove(releases / "old")
    assert [entry.name for entry in releases.iterdir()] == ["old.tmp"]
    # The same release came again, and goes again.
    release(releases, "old", 0)
    remove(releases / "old")
    assert list(releases.iterdir()) == []


# --- one at a time -------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
sys.path.insert(0, {files!r})
from edge_host.lock import locked
from edge_host.paths import Paths
with locked(Paths(Path({root!r})), {verb!r}, 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(paths: Paths, verb: str) -> subprocess.Popen[bytes]:
    """Another process that holds the lock until its stdin ends."""
    code = HOLDER.format(files=str(FILES), root=str(paths.root), verb=verb)
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


@pytest.mark.parametrize(
    ("held", "asked", "free"),
    [
        ("activate", "activate", False),
        ("activate", "probe", False),
        ("probe", "activate", False),
        ("probe", "probe", True),
    ],
)
def test_activations_are_alone(paths: Paths, held: str, asked: str, free: bool) -> None:
    with hold(paths, held) as holder:
        if free:
            with locked(paths, asked, 0):
                pass
        else:
            with (
                pytest.raises(Failed, match=f"at work.*{held}, process {holder.pid}, since 20"),
                locked(paths, asked, 0),
            ):
                pass
        holder.communicate()
    with locked(paths, asked, 0):
        pass


def test_a_killed_holder_holds_nothing(paths: Paths) -> None:
    with hold(paths, "activate") as holder:
        holder.kill()
        holder.wait()
        with locked(paths, "activate", 0):
            pass


def test_waiting_says_for_whom(paths: Paths, capfd: pytest.CaptureFixture[str]) -> None:
    with hold(paths, "activate") as holder:
        with pytest.raises(Failed), locked(paths, "activate", 2.5):
            pass
        holder.communicate()
    assert (
        f"waiting for another edge-host: activate, process {holder.pid}" in capfd.readouterr().err
    )


# --- what is restarted ---------------------------------------------------------------------------


def environ(paths: Paths, pid: int, digest: str) -> None:
    write(paths.at(f"/proc/{pid}/environ"), f"A=1\0EDGE_LLM_DIGEST={digest}\0B=x=y\0".encode())


def reasons(paths: Paths, before: dict[str, str] | None = None) -> dict[str, str]:
    wanted = Wanted.parse(request(files=["/etc/unit", "/etc/env"]))
    shown = show(paths, ENGINE, PROXY, SOCKET)
    earlier = {name: {**shown[name], **(before or {})} for name in shown}
    return {name: why_restart(paths, wanted, shown, earlier, name) for name in shown}


def test_why_a_service_is_restarted(paths: Paths) -> None:
    started = str(int(time.monotonic() * 1e6))
    own = {"FragmentPath": "/etc/unit", "EnvironmentFiles": "/etc/env (ignore_errors=no)"}
    since = {"ExecMainStartTimestampMonotonic": started}
    write(paths.at("/etc/unit"), age_s=10)
    write(paths.at("/etc/env"), age_s=10)
    environ(paths, 11, "d1")
    environ(paths, 12, "d2")
    unit(paths, ENGINE, MainPID="11", **own, **since)
    unit(paths, PROXY, MainPID="12", **own, **since)
    unit(paths, SOCKET, FragmentPath="/etc/unit", ActiveEnterTimestampMonotonic=started)
    assert set(reasons(paths).values()) == {""}
    assert set(reasons(paths, {"NeedDaemonReload": "yes"}).values()) == {
        "its unit was changed on the disk"
    }

    model = Wanted.parse(request()).model_path
    write(paths.at("/proc/11/maps"), f"7f00-7f10 r--s 00 08:01 17    {model}\n".encode())
    assert reasons(paths)[ENGINE] == ""
    write(paths.at("/proc/11/maps"), f"7f00-7f10 r--s 00 08:01 17    {model} (deleted)\n".encode())
    assert reasons(paths)[ENGINE] == "its model was replaced on the disk"
    write(paths.at("/proc/11/maps"))

    environ(paths, 12, "other")
    assert reasons(paths)[PROXY] == "it runs other, not d2"
    assert reasons(paths)[ENGINE] == ""
    unit(paths, PROXY, MainPID="13", **own, **since)
    assert reasons(paths)[PROXY] == "it runs an unknown configuration, not d2"
    unit(paths, PROXY, MainPID="0", ActiveState="activating")
    assert reasons(paths)[PROXY] == "it is activating"

    write(paths.at("/etc/env"), age_s=-10)
    assert reasons(paths)[ENGINE] == "/etc/env was changed after its start"
    assert reasons(paths)[SOCKET] == ""


def test_show_reads_properties_that_come_twice(paths: Paths) -> None:
    file = paths.root.parent / "systemd" / PROXY
    file.write_text("Id=x\nEnvironmentFiles=/a (ignore_errors=no)\nEnvironmentFiles=/b (ignore)\n")
    assert show(paths, PROXY)[PROXY]["EnvironmentFiles"].split()[::2] == ["/a", "/b"]


def test_nothing_is_changed_where_a_part_is_missing(paths: Paths) -> None:
    write(paths.releases("engine") / "e1" / ".complete")
    write(paths.releases("proxy") / "x1" / "program")
    result = run(paths, "activate", json.dumps(request()).encode())
    assert not result.ok
    assert "proxy release" in result.reason
    assert result.reason.endswith("nothing was started or stopped")
    assert told(paths) == []
    assert not paths.current("engine").is_symlink()
    assert json.loads((paths.state / "last-activation.json").read_text())["reason"] == result.reason


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """The program as a host has it, and how its first line says to run it."""
    file = write(tmp_path / "edge-host", agent_program())
    python, *options = agent_program().splitlines()[0].decode().split()
    assert python == "#!/usr/bin/python3"  # the system's own: no venv is there
    return [sys.executable, *options, str(file)]


def test_the_result_is_one_line_of_json(program: list[str]) -> None:
    done = subprocess.run([*program, "probe"], input=b"{", capture_output=True)
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == 1
    result = json.loads(done.stdout)
    assert list(result) == list(Result("probe").__dict__)
    assert result["ok"] is False
    assert "it is no JSON" in result["reason"]


def test_nobody_need_listen(tmp_path: Path) -> None:
    """The controller is gone: neither stdout nor stderr can be written, and it goes on."""
    code = (
        f"import sys; sys.path.insert(0, {str(FILES)!r}); "
        "from edge_host.__main__ import main; from edge_host.result import say; "
        "sys.argv = ['edge-host', 'probe']; say('hello'); main(); "
        f"open({str(tmp_path / 'went on')!r}, 'w')"
    )
    read, gone = os.pipe()
    os.close(read)
    subprocess.run([sys.executable, "-c", code], input=b"{", stdout=gone, stderr=gone, check=False)
    os.close(gone)
    assert (tmp_path / "went on").exists()


def test_usage(program: list[str]) -> None:
    done = subprocess.run([*program, "enliven"], capture_output=True)
    assert done.returncode == 1
    assert b"usage" in done.stderr
