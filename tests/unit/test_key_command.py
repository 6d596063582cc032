"""`edge key`: the key on standard output once, its hash in the file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge.cli import main
from edge.fleet import CHECKOUT
from edge.keys import parse

A = "a" * 64


def key(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["key", *map(str, arguments)])


def test_a_new_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    result = key("new", "till-3", "--file", file, "--rate", "60", "--expires", "2099-12-31")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    (made,) = parse(file.read_text(), "keys")
    assert made.sha256 == hashlib.sha256(line.encode()).hexdigest()
    assert (made.name, made.rate_per_minute, str(made.last_day)) == ("till-3", 60, "2099-12-31")
    assert file.stat().st_mode & 0o777 == 0o600
    assert line not in result.stderr + file.read_text()
    roll_out = "Hosts accept it from the next rollout on: pyinfra inventory deploy.py"
    assert f"till-3 is in {file}. {roll_out}\n" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_what_is_in_the_file_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "keys", tmp_path / "link"
    file.write_text(f"# ours\nold {A}")  # and no line end
    file.chmod(0o640)
    link.symlink_to(file)
    assert key("new", "till", "--file", link).exit_code == 0
    assert link.is_symlink()
    assert file.read_text().startswith(f"# ours\nold {A}\ntill ")
    assert [each.name for each in parse(file.read_text(), "keys")] == ["old", "till"]
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["old"], "has a key called old; take another name"),
        (["host"], "the name host is the host's own"),
        (["a b"], "'a b' is no name"),
        (["till", "--rate", "0"], "--rate"),
        (["till", "--expires", "2020-01-31"], "is over already"),
        (["till", "--expires", "tomorrow"], "--expires"),
    ],
)
def test_a_key_that_is_not_made(tmp_path: Path, arguments: list[str], why: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"old {A}\n")
    result = key("new", *arguments, "--file", file)
    assert result.exit_code != 0
    assert why in result.stderr
    assert result.stdout == ""
    assert file.read_text() == f"old {A}\n"


def test_a_file_that_cannot_be_used_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("till edge-" + "x" * 43)
    for result in (key("new", "a", "--file", file), key("revoke", "till", "--file", file),
                   key("list", "--file", file)):  # fmt: skip
        assert result.exit_code == 1
        assert "line 1: it holds a key in the clear" in result.stderr
        assert "xxx" not in result.output
    file.write_bytes(b"\xff\xfe")
    assert "no text in UTF-8" in key("list", "--file", file).stderr
    file.unlink()
    file.mkdir()
    assert "is a directory" in key("list", "--file", file).stderr
    file = file / "key"
    file.symlink_to(file)  # to itself
    loops = f"Error: {file}: Too many levels of symbolic links\n"
    assert key("list", "--file", file).stderr == loops


@pytest.mark.parametrize("command", [["list"], ["revoke", "till"]])
def test_a_file_that_is_not_there(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "none"
    result = key(*command, "--file", file)
    assert result.exit_code == 1
    way_out = f"there is no file {file}; `edge key new NAME --file {file}` makes it"
    assert result.stderr == f"Error: {way_out}\n"
    assert not file.exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = key("new", "a", "--file", tmp_path / "none" / "keys")
    assert result.exit_code == 1
    assert result.stderr == f"Error: there is no folder {tmp_path / 'none'}; make it first\n"
    assert result.stdout == ""


def test_the_list_tells_no_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"till {A} rate=60\nkiosk {'b' * 64} expires=2020-01-31\n")
    result = key("list", "--file", file)
    assert result.output.splitlines() == [
        "NAME   REQUESTS A MINUTE  LAST DAY",
        "till   60                 none",
        "kiosk  any number         2020-01-31, EXPIRED",
    ]


def test_a_key_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\ntill {A}\ntill-2 {'b' * 64}\n")
    result = key("revoke", "till", "--file", file)
    assert result.exit_code == 0
    assert result.stderr == (
        f"till is out of {file}. Hosts refuse it from the next rollout on; until then it still "
        "works: pyinfra inventory deploy.py\n"
    )
    assert file.read_text() == f"# ours\ntill-2 {'b' * 64}\n"
    result = key("revoke", "till", "--file", file)
    assert result.exit_code == 1
    assert "has no key called till; there are: till-2" in result.stderr


def test_two_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"

    def new(name: str) -> int:
        code = f"from edge.cli import main; main(['key','new','{name}','--file',{str(file)!r}])"
        words = [sys.executable, "-c", code]
        return subprocess.run(words, cwd=CHECKOUT, capture_output=True, check=False).returncode

    names = [f"k{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(new, names)) == [0] * 6
    assert {each.name for each in parse(file.read_text(), "keys")} == set(names)
