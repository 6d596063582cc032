"""The `edge` command: help without loading anything, and `edge plan` on recorded machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge.cli import COMMANDS, main
from tests.unit.command import pyinfra, python
from tests.unit.fake_fleet import write_fleet


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_LLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("edge.fleet._run", pyinfra)  # forked: quicker


def edge(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys, edge.cli\n"
        "try: edge.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'pyinfra', 'pydantic', 'gguf', 'lab', 'requests'} & set(sys.modules)))\n"
    )
    run = python("-c", code)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in run.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name: str) -> None:
    result = edge(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


def test_no_such_command() -> None:
    result = edge("paln")
    assert result.exit_code == 2
    assert "No such command 'paln'" in result.output


def test_plan_shows_every_number_with_its_reason(tmp_path: Path) -> None:
    fleet = {
        "n100": {"a": ("n100", {})},
        "ryzen": {"b": ("ryzen-3500u", {"slots": 3})},
        "pi5": {"c": ("pi5-4gb", {})},
    }
    result = edge("plan", write_fleet(tmp_path, fleet))
    assert result.exit_code == 0, result.output
    blocks = result.output.split("\n\n")
    assert [block.split()[0] for block in blocks] == ["@fake/a", "@fake/b", "@fake/c"]
    first = [" ".join(line.split()) for line in blocks[0].splitlines()]
    assert first[0] == "@fake/a inventory group n100"
    assert "threads 3 4 physical cores less 1 for the system" in first
    assert "cpus 1,2,3 one logical CPU a physical core; 1 of 4 cores kept for the system" in first
    assert "cpu quota 225 % 75% of 3 chosen cores" in first
    assert "memory limit 1144 MiB 1.2 GB, as the recipe" in first
    assert "context in all 4096 tokens 2 slots" in first
    assert "slots                3" in blocks[1]
    assert "  ! power-profiles-daemon.service (active, enabled) may set" in blocks[1]
    assert "kernel command line  cgroup_enable=memory cgroup_memory=1" in blocks[2]
    starts = {line.index("75% of 3") for line in result.output.splitlines() if "75% of 3" in line}
    assert all(start > 20 for start in starts)


def test_plan_as_json(tmp_path: Path) -> None:
    inventory = write_fleet(tmp_path, {"n100": {"a": ("n100", {}), "gone": ("", {})}})
    result = edge("plan", inventory, "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    plan = data["@fake/a"]["plan"]
    assert plan["engine"]["cpus"] == [1, 2, 3]
    assert plan["limits"]["cpu_quota_percent"] == 225
    assert plan["reasons"]["engine.threads"]
    assert data["gone"]["unreachable"].startswith("Could not connect")


def test_an_unreachable_host_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    inventory = write_fleet(tmp_path, {"n100": {"gone": ("", {}), "a": ("n100", {})}})
    result = edge("plan", inventory)
    assert result.exit_code == 1
    gone, shown = result.output.split("\n\n")
    assert gone.startswith("gone  not reached\n  Could not connect")
    assert shown.startswith("@fake/a  inventory group n100")


def test_a_refusal_says_which_number_to_change(tmp_path: Path) -> None:
    fleet = {"n100": {"a": ("n100", {"threads": 8}), "b": ("n100", {})}}
    inventory = write_fleet(tmp_path, fleet)
    result = edge("plan", inventory)
    assert result.exit_code == 1
    assert "@fake/a  cannot work like this\n  threads = 8: the host has 4 phys" in result.output
    assert "set threads = 3" in result.output
    problems = json.loads(edge("plan", inventory, "--json").stdout)["@fake/a"]["problems"]
    assert [(problem["key"], problem["value"]) for problem in problems] == [("threads", 8)]


def test_bad_settings_are_all_listed_before_any_host_is_asked(tmp_path: Path) -> None:
    fleet = {"n100": {"gone": ("", {"thread": 2}), "b": ("n100", {"slots": "two"})}}
    result = edge("plan", write_fleet(tmp_path, fleet))
    assert result.exit_code == 1
    assert "Error: 2 problems in 2 hosts; nothing was changed:" in result.output
    assert "gone: thread = 2: no such setting; did you mean threads?" in result.output
    assert "@fake/b: slots = 'two': allowed:" in result.output
    assert "not reached" not in result.output


def test_verify_refuses_a_list_of_keys_before_any_host_is_asked(tmp_path: Path) -> None:
    listed = tmp_path / "api-keys"
    listed.write_text(f"till {'a' * 64}\n")
    result = edge("verify", "no-such-inventory", "--key-file", str(listed))
    assert result.exit_code == 1
    assert f"Error: --key-file: {listed} must hold one key in the clear" in result.output
    assert "it is a list of keys, which has their hashes only" in result.output
    command = "(umask 077; edge key new verify --file inventory/api-keys > ~/verify.key)"
    assert command in edge("verify", "--help").output


def test_a_limit_that_matches_nobody() -> None:
    result = edge("plan", "inventory", "--limit", "typo")
    assert result.exit_code == 1
    assert result.output.startswith("Error: --limit typo matches no host. Hosts: ")


def test_a_limit_plans_these_hosts_only(tmp_path: Path) -> None:
    fleet = {"n100": {"a": ("n100", {})}, "pi5": {"gone": ("", {})}}
    result = edge("plan", write_fleet(tmp_path, fleet), "--limit", "n100")
    assert result.exit_code == 0, result.output
    assert "gone" not in result.output
