"""The engine's key: made once on a host, kept while it is good, replaced when it is not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from edge_host.paths import Paths
from edge_host.result import Failed
from edge_host.secret import FILE, ensure_key, has_other_key, headers, read_key
from edge_host.units import ENGINE

GOOD = f"LLAMA_API_KEY={'ab' * 32}\n"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.at(FILE).parent.mkdir(parents=True)
    return paths


def write(paths: Paths, text: str, mode: int = 0o600) -> Path:
    file = paths.at(FILE)
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_key_is_made_and_kept(paths: Paths) -> None:
    ensure_key(paths)
    file = paths.at(FILE)
    text, inode = file.read_text(), file.stat().st_ino
    assert re.fullmatch(r"LLAMA_API_KEY=[0-9a-f]{64}\n", text)
    assert file.stat().st_mode & 0o7777 == 0o600
    assert headers(paths) == {"Authorization": f"Bearer {text[14:-1]}"}
    ensure_key(paths)
    assert (file.read_text(), file.stat().st_ino) == (text, inode)


def test_a_folder_in_its_place_is_named(paths: Paths) -> None:
    paths.at(FILE).mkdir()
    with pytest.raises(Failed, match=f"{FILE} is a folder"):
        ensure_key(paths)


def test_no_two_are_the_same(tmp_path: Path) -> None:
    made = set()
    for name in "abc":
        ensure_key(Paths(tmp_path / name))
        made.add(read_key(Paths(tmp_path / name)))
    assert len(made) == 3


BAD: dict[str, Callable[[Paths], object]] = {
    "open to the group": lambda paths: write(paths, GOOD, 0o640),
    "empty": lambda paths: write(paths, ""),
    "cut off": lambda paths: write(paths, GOOD[:40]),
    "another line": lambda paths: write(paths, GOOD + "LLAMA_ARG_HOST=0.0.0.0\n"),
    "no text": lambda paths: paths.at(FILE).write_bytes(b"\xff" * 79),
    "a link": lambda paths: paths.at(FILE).symlink_to(write(paths, GOOD).rename(paths.at("/key"))),
}
if os.geteuid() == 0:
    BAD["somebody else's"] = lambda paths: os.chown(write(paths, GOOD), 12, 0)


@pytest.mark.parametrize("what", BAD)
def test_one_that_cannot_be_trusted_is_replaced(paths: Paths, what: str) -> None:
    BAD[what](paths)
    assert read_key(paths) == ""
    assert headers(paths) == {}
    ensure_key(paths)
    assert read_key(paths) not in ("", "ab" * 32)
    file = paths.at(FILE)
    assert not file.is_symlink()
    assert (file.stat().st_mode & 0o7777, file.stat().st_uid) == (0o600, os.geteuid())


@pytest.mark.parametrize(
    ("files", "environment", "other"),
    [
        (FILE, "LLAMA_API_KEY=" + "ab" * 32, False),
        (FILE, "LLAMA_API_KEY=" + "cd" * 32, True),
        (FILE, "WORDS=none", True),
        # A unit from before there were keys, to which a host may go back.
        ("/etc/edge-llm/proxy.env", "WORDS=none", False),
    ],
)
def test_what_runs_with_another_key_is_seen(
    paths: Paths, files: str, environment: str, other: bool
) -> None:
    write(paths, GOOD)
    process = paths.at("/proc/42/environ")
    process.parent.mkdir(parents=True)
    process.write_text(f"{environment}\0")
    shown = {
        ENGINE: {
            "ActiveState": "active",
            "MainPID": "42",
            "EnvironmentFiles": f"/etc/a (ignore_errors=yes) {files} (ignore_errors=no)",
        }
    }
    assert has_other_key(paths, shown, ENGINE) is other
    shown[ENGINE]["ActiveState"] = "inactive"
    assert not has_other_key(paths, shown, ENGINE)
