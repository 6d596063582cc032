"""The operations' shell, run for real in a folder that stands for a host's root."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.operations import managed, release, remote
from edge.render import ManagedFile
from edge.steps import preflight

ME = f"{pwd.getpwuid(os.geteuid()).pw_name}:{grp.getgrgid(os.getegid()).gr_name}"
Shell = Callable[..., subprocess.CompletedProcess[str]]


def commands(operation: Any, **arguments: Any) -> list[Any]:
    """What an operation yields, as pyinfra's own generator gives it."""
    return list(operation._inner(**arguments))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a yielded command with every absolute path of ours moved under tmp_path."""

    def run(
        command: Any, *, check: bool = True, path: str = ""
    ) -> subprocess.CompletedProcess[str]:
        script = command.get_raw_value()
        for top in ("/opt/edge-llm", "/etc/edge-llm", "/var/lib/edge-llm"):
            script = script.replace(top, f"{tmp_path}{top}")
        done = subprocess.run(
            ["sh", "-c", script], input=command.connector_arguments.get("_stdin"),
            capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done

    return run


def a_file(path: str, content: bytes = b"new\n", mode: str = "640") -> ManagedFile:
    return ManagedFile(path, content, mode, ME)


# --- Managed files


def test_files_arrive_with_content_mode_and_nothing_beside_them(
    shell: Shell, tmp_path: Path
) -> None:
    old = tmp_path / "etc/edge-llm/old"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old\n")
    files = [
        a_file("/etc/edge-llm/proxy.env", b'A="%s $x `y`\n\n\xe4\xbd\xa0"\n'),
        a_file("/opt/edge-llm/bin/run", b"\x00\xff\n", "755"),
        a_file("/etc/edge-llm/a folder/with 'quotes'"),
    ]
    then = ["echo one >> /etc/edge-llm/log", "echo two >> /etc/edge-llm/log"]
    (command,) = commands(managed.files, write=files, remove=["/etc/edge-llm/old"], then=then)
    shell(command)
    for file in files:
        there = Path(f"{tmp_path}{file.path}")
        assert there.read_bytes() == file.content
        assert oct(there.stat().st_mode)[-3:] == file.mode
        assert hashlib.sha256(there.read_bytes()).hexdigest() == file.state.sha256
    assert not old.exists()
    assert (tmp_path / "etc/edge-llm/log").read_text() == "one\ntwo\n"
    left = [
        path.name for path in tmp_path.rglob("*") if ".new." in path.name or "edge-new" in path.name
    ]
    assert left == []


def test_a_folder_that_was_open_is_closed(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "opt/edge-llm/a b"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    then = [managed.closed("/opt/edge-llm/a b").replace("root:root", ME)]
    (command,) = commands(managed.files, write=[], then=then)
    shell(command)
    assert oct(folder.stat().st_mode)[-3:] == "755"


def test_a_secret_is_in_no_argument() -> None:
    (command,) = commands(managed.files, write=[a_file("/etc/edge-llm/proxy.env", b"sesame")])
    assert "sesame" not in command.get_raw_value()


def test_a_command_that_fails_stops_what_comes_after(shell: Shell, tmp_path: Path) -> None:
    (command,) = commands(managed.files, write=[a_file("/etc/edge-llm/a")],
                          then=["false", "touch /etc/edge-llm/never"])  # fmt: skip
    assert shell(command, check=False).returncode != 0
    assert not (tmp_path / "etc/edge-llm/never").exists()
    assert not list((tmp_path / "var/lib/edge-llm").glob(".new.*"))


def test_an_owner_that_does_not_exist_leaves_the_old_file(shell: Shell, tmp_path: Path) -> None:
    there = tmp_path / "etc/edge-llm/a"
    there.parent.mkdir(parents=True)
    there.write_text("old\n")
    (command,) = commands(
        managed.files, write=[ManagedFile("/etc/edge-llm/a", b"new\n", owner="no-such:no-such")]
    )
    assert shell(command, check=False).returncode != 0
    assert there.read_text() == "old\n"


def test_nothing_to_do_is_no_command() -> None:
    assert commands(managed.files, write=[]) == []
    assert commands(release.engine, release_id="b1", flags=[], needed=False) == []
    assert commands(release.proxy, release_id="p1", needed=False) == []
    assert commands(preflight.packages, wanted=[]) == []
    assert commands(preflight.account, present=True) == []


# --- What a host answers


def test_what_a_login_shell_prints_first_is_no_answer() -> None:
    def answer(command: Any, *, _stdin: str | None) -> tuple[bool, Any]:
        done = subprocess.run(
            ["sh", "-c", f"printf 'Welcome to the kiosk'; {command.get_raw_value()}"],
            input=_stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        out = SimpleNamespace(stdout_lines=done.stdout.splitlines(), stderr_lines=[])
        return done.returncode == 0, out

    host: Any = SimpleNamespace(run_shell_command=answer)
    assert remote.succeed(host, "cat; echo 12", {}, stdin="7\n").split() == ["7", "12"]
    assert remote.run(host, "false", {}) == remote.Output(ok=False, stdout="", stderr="")


# --- Releases

SERVER = """#!/bin/sh
case "$1" in
  --version) echo "version: 1"; exit {exit};;
  --help) printf '%s\\n' '-m,    --model FNAME   model' '-np,   --parallel N' '--no-ui';;
esac
"""


def pack(tmp_path: Path, kind: str, release_id: str, exit_code: int = 0) -> Path:
    archive = Path(f"{tmp_path}{release.incoming(kind, release_id)}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    server = tmp_path / "llama-server"
    server.write_text(SERVER.format(exit=exit_code))
    server.chmod(0o755)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(server, "llama-server")
    return archive


def install(shell: Shell, flags: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    (command,) = commands(release.engine, release_id="b1", flags=flags)
    return shell(command, **more)


def test_an_engine_is_tried_before_it_gets_its_name(shell: Shell, tmp_path: Path) -> None:
    archive = pack(tmp_path, "engine", "b1")
    install(shell, ["--model", "--parallel", "--no-ui"])
    folder = tmp_path / "opt/edge-llm/engine/releases"
    assert [path.name for path in folder.iterdir()] == ["b1"]
    assert (folder / "b1/.complete").exists()
    assert not archive.exists()


@pytest.mark.parametrize(
    ("exit_code", "flags", "says"),
    [
        (1, ["--model"], "the engine does not start on this host: version: 1"),
        (0, ["--model", "--mlock"], "this engine has no flag --mlock"),
        (0, ["--paralle"], "this engine has no flag --paralle"),
    ],
)
def test_an_engine_that_does_not_fit_gets_no_name(
    shell: Shell, tmp_path: Path, exit_code: int, flags: list[str], says: str
) -> None:
    pack(tmp_path, "engine", "b1", exit_code)
    done = install(shell, flags, check=False)
    assert done.returncode != 0
    assert says in done.stderr
    assert not (tmp_path / "opt/edge-llm/engine/releases/b1").exists()


def test_what_a_killed_run_left_is_made_anew(shell: Shell, tmp_path: Path) -> None:
    pack(tmp_path, "engine", "b1")
    half = tmp_path / "opt/edge-llm/engine/releases/b1.tmp"
    half.mkdir(parents=True)
    (half / "rubbish").touch()
    unfinished = half.with_name("b1")
    unfinished.mkdir()
    (unfinished / "old").touch()
    install(shell, ["--model"])
    assert sorted(path.name for path in unfinished.iterdir()) == [".complete", "llama-server"]
    assert not half.exists()


def test_a_second_run_finds_the_release_done(shell: Shell, tmp_path: Path) -> None:
    pack(tmp_path, "engine", "b1")
    install(shell, ["--model"])
    # The archive is gone, as another controller leaves it.
    assert install(shell, ["--model"]).returncode == 0
    assert (tmp_path / "opt/edge-llm/engine/releases/b1/.complete").exists()


def test_packages_wait_for_apts_lock_and_update_only_if_they_must(
    shell: Shell, tmp_path: Path
) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    log = tmp_path / "log"
    (fake / "apt-get").write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n'
        f'case "$*" in *install*) [ -e {tmp_path}/updated ];; *) touch {tmp_path}/updated;; esac\n'
    )
    (fake / "apt-get").chmod(0o755)
    (command,) = commands(preflight.packages, wanted=["python3", "libgomp1"])
    shell(command, path=str(fake))
    tried, updated, again = log.read_text().splitlines()
    assert tried == again
    assert tried.endswith("--no-install-recommends install python3 libgomp1")
    assert all("DPkg::Lock::Timeout=300" in line for line in (tried, updated))
    shell(command, path=str(fake))
    assert len(log.read_text().splitlines()) == 4  # no second update
