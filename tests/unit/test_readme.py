"""What the README tells people to type and to set exists."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from chat_proxy.metrics import Metrics
from chat_proxy.pulse import Pulse
from chat_proxy.record import Record

from edge.cli import COMMANDS
from edge.fleet import CHECKOUT
from edge.settings import Settings

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.S)


def commands(text: str) -> list[list[str]]:
    """Every command line of the shell blocks, without comments, as words."""
    lines = [line for block in blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    pieces = [piece for line in lines for piece in line.split("&&")]
    return [words for piece in pieces if (words := shlex.split(piece, comments=True))]


def test_the_two_commands_come_first() -> None:
    assert commands(README)[:2] == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("words", commands(README), ids=" ".join)
def test_a_command_exists(words: list[str]) -> None:
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", MAKEFILE, re.M)
        case ["edge", verb, inventory]:
            assert verb in COMMANDS
            assert (CHECKOUT / inventory).exists()
        case ["pyinfra", inventory, deploy]:
            assert inventory == "@local" or (CHECKOUT / inventory).exists()
            assert (CHECKOUT / deploy).is_file()
        case ["$EDITOR", file]:
            assert (CHECKOUT / file).is_file()
        case ["source", ".venv/bin/activate"]:
            pass
        case ["/opt/edge-llm/bin/edge-tuning", verb]:
            assert f"\n# edge-tuning {verb} " in (CHECKOUT / "files/edge-tuning").read_text()
        case ["curl" | "systemctl" | "cd" | "rm" | "[" | "userdel", *_]:
            pass  # on a host: tests/lab/test_readme.py runs them there
        case _:
            pytest.fail(f"no test knows this command: {words}")


def settings_table() -> list[tuple[str, str]]:
    section = README.split("## Settings people change first")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*) \|", section, re.M)
    return [(name, default) for names, default in rows for name in re.findall(r"`(\w+)`", names)]


def test_the_settings_table_tells_the_defaults() -> None:
    assert len(settings_table()) > 5
    for name, told in settings_table():
        default = Settings.model_fields[name].default
        if not name.startswith("model_"):
            assert told.strip("` ") == str(default), name


def test_the_count_by_key_reads_the_proxys_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for caller, tokens in (("till-3", 5), ("till-3", 7), ("kiosk", 1), (None, None)):
        record = Record("/chat", Metrics(), Pulse())
        record.caller, record.tokens_in, record.tokens_out = caller, tokens, tokens
        record.close()
    lines = "Started chat-proxy.service\n" + capsys.readouterr().out
    (shown,) = (line for line in OPERATIONS.splitlines() if line.startswith("    path=/chat"))
    assert re.findall(r"(\w+)=", shown) == re.findall(r"(\w+)=", lines.splitlines()[1])
    (count,) = (block for block in blocks(OPERATIONS) if "awk" in block)
    run = subprocess.run(
        ["sh", "-c", count.partition(" | ")[2]],
        input=lines, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(run.stdout.splitlines()) == [
        "- 1 requests 0 tokens",
        "kiosk 1 requests 2 tokens",
        "till-3 2 requests 24 tokens",
    ]


def test_links_lead_somewhere() -> None:
    for text, folder in ((README, CHECKOUT), (OPERATIONS, CHECKOUT / "docs")):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert "://" in target or (folder / target).exists(), target
