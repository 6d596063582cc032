"""What an operator gets wrong: refused with a message to act on, and no host is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tests.deploy.conftest import Fleet
from tests.deploy.device import DEVICES, N100
from tests.deploy.rollout import Run, run_pyinfra
from tests.deploy.ssh_server import SshServer, ssh_server


@dataclass(frozen=True)
class Mistake:
    """Host data of one host of two, and what the message must say."""

    data: dict[str, Any]
    says: tuple[str, ...]
    surveyed: bool = False
    """Whether it takes a survey to know."""
    group: str = "n100"
    options: tuple[str, ...] = field(default=())


MISTAKES = {
    "typo": Mistake(
        {"thread": 3}, ("@fake/wrong: thread = 3", "no such setting", "did you mean threads?")
    ),
    "wrong-type": Mistake(
        {"threads": "three"},
        ("@fake/wrong: threads = 'three'", 'allowed: "auto" or a whole number from 1 to 256'),
    ),
    "out-of-range": Mistake(
        {"proxy_port": 80_000},
        ("@fake/wrong: proxy_port = 80000", "a whole number from 1 to 65535"),
    ),
    "listen": Mistake(
        {"proxy_listen": "eth0"},
        ("@fake/wrong: proxy_listen = 'eth0'", "is not an IP address", "0.0.0.0 the network"),
    ),
    "ubatch-over-batch": Mistake(
        {"ubatch_size": 1024},
        ("@fake/wrong: ubatch_size = 1024", "must not be larger than batch_size (512)"),
    ),
    "control-character": Mistake(
        {"system_prompt": "Be\x00kind"},
        ("@fake/wrong: system_prompt", "control characters", "newline and tab"),
    ),
    "half-a-character": Mistake(
        {"system_prompt": "Be kind \ud800"},
        ("@fake/wrong: system_prompt", "no text", "\\ud800"),
    ),
    "noncharacter": Mistake(
        {"system_prompt": "Be kind \ufffe"},
        ("@fake/wrong: system_prompt", "no text", "\\ufffe"),
    ),
    "name-of-two-words": Mistake(
        {"model_name": "my model"},
        ("@fake/wrong: model_name = 'my model'", "must be one word"),
    ),
    "sum-memory": Mistake(
        {"memory_max_mib": 100},
        ("@fake/wrong: memory_max_mib = 100", "the model needs", "set memory_max_mib = "),
        surveyed=True,
    ),
    "threads-over-cores": Mistake(
        {"threads": 9},
        ("@fake/wrong: threads = 9", "the host has 4 physical cores", "set threads = 3"),
        surveyed=True,
    ),
    "share-under-threads": Mistake(
        {"threads": 3, "cpu_share_percent": 20},
        ("@fake/wrong: cpu_share_percent = 20", "set cpu_share_percent = 50 or more"),
        surveyed=True,
    ),
    "context-beyond-the-model": Mistake(
        {"context_per_slot": 8192},
        ("@fake/wrong: context_per_slot = 8192", "trained for 4096", "context_per_slot = 4096"),
        surveyed=True,
    ),
    "no-model-file": Mistake(
        {"model_source": "file:///nowhere/model.gguf", "model_sha256": ""},
        (
            "@fake/wrong: model_source = 'file:///nowhere/model.gguf': there is no file "
            "/nowhere/model.gguf on the controller",
        ),
        surveyed=True,
    ),
    "source-of-no-kind": Mistake(
        {"model_source": "ftp://example.org/model.gguf", "model_sha256": "0" * 64},
        ("@fake/wrong: model_source", "ftp: is not a kind of source", "allowed are hub:"),
    ),
}


def _only_surveyed(run: Run) -> bool:
    return all(
        "say unreadable" in exec_.command and not exec_.operation
        for execs in run.execs.values()
        for exec_ in execs
    )


def _refused(run: Run) -> str:
    """The message of a run that was refused as a whole."""
    assert run.code != 0
    assert "Traceback" not in run.log
    assert "An exception occurred" not in run.log
    assert "pyinfra-debug.log" not in run.log
    assert not run.stdout.strip(), "no operation was planned"
    assert _only_surveyed(run)
    return run.log


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_setting_is_refused(fleet: Fleet, name: str) -> None:
    mistake = MISTAKES[name]
    wrong = fleet.host(N100, mistake.group, **mistake.data)
    run = fleet.roll_out({"right": fleet.host(N100, "n100"), "wrong": wrong}, *mistake.options)
    message = _refused(run)
    for words in mistake.says:
        assert words in message
    assert "1 problem in 1 host; nothing was changed" in message
    assert len(run.told("wrong")) == len(run.told("right")) == mistake.surveyed


def test_every_problem_of_every_host_is_in_one_message(fleet: Fleet) -> None:
    hosts = {
        "one": fleet.host(N100, "n100", thread=3, proxy_port="8000"),
        "two": fleet.host(N100, "n100", slots=0),
        "three": fleet.host(DEVICES["pi5"], "pi5", temperature=3),
    }
    message = _refused(fleet.roll_out(hosts))
    assert "4 problems in 3 hosts; nothing was changed" in message
    for words in ("one: thread", "one: proxy_port", "two: slots", "three: temperature"):
        assert f"@fake/{words}" in message


def test_a_plan_that_cannot_be_solved_says_how_to_go_on_without_the_host(fleet: Fleet) -> None:
    hosts = {"right": fleet.host(N100, "n100"), "wrong": fleet.host(N100, "n100", threads=9)}
    message = _refused(fleet.roll_out(hosts))
    assert "--exclude @fake/wrong" in message
    run = fleet.roll_out(hosts, "--exclude", "@fake/wrong")
    assert run.code == 0, run.log
    assert run.changed("right")
    assert run.told("wrong") == []


def test_a_file_with_another_sum_is_refused(fleet: Fleet) -> None:
    wrong = fleet.host(N100, "n100", model_sha256="0" * 64)
    message = _refused(fleet.roll_out({"wrong": wrong}))
    assert "--exclude" not in message  # nobody would be left
    assert "@fake/wrong: model_source" in message
    assert "0" * 64 in message
    assert fleet.model_data["model_sha256"] in message


def test_an_unknown_group_is_decided_by_the_survey_and_said(fleet: Fleet) -> None:
    """No hardware group is no mistake; a misspelt one would be silent, so the table says it."""
    run = fleet.roll_out({"box": fleet.host(N100, "n1000")})
    assert run.code == 0, run.log
    assert "@fake/box  n100 " in run.log


def test_a_limit_that_matches_nobody_is_refused(fleet: Fleet) -> None:
    run = fleet.roll_out({"right": fleet.host(N100, "n100")}, "--limit", "rihgt")
    message = _refused(run)
    assert "--limit rihgt matches no host. Hosts: @fake/right. Groups: " in message
    assert run.told("right") == []


def test_an_inventory_that_is_not_there_is_refused() -> None:
    done = run_pyinfra(["-y", "inventroy/fleet.py", "deploy.py"])
    assert done.returncode != 0
    assert "No inventory file: inventroy/fleet.py" in done.stderr
    assert "Traceback" not in done.stderr


# --- Connections


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as running:
        yield running


def _beside(fleet: Fleet, name: str, data: dict[str, Any]) -> Run:
    """Roll out to one host over real SSH, and a fake one that is fine."""
    hosts = {"right": fleet.host(N100, "n100")}
    real = {
        **fleet.model_data, "ssh_hostname": "127.0.0.1", "ssh_user": "root",
        "ssh_allow_agent": False, "ssh_look_for_keys": False,
        "ssh_config_file": "/dev/null", "ssh_strict_host_key_checking": "yes", **data,
    }  # fmt: skip
    return fleet.roll_out(hosts, real={name: real})


def _fails_alone(run: Run, name: str) -> str:
    """The host is named with its reason at the end, the other one was served."""
    assert run.code != 0
    assert "Traceback" not in run.log
    assert run.changed("right")[-1] == "Gate | Switch and prove"
    (line,) = (line for line in run.log.splitlines() if line.startswith(f"{name}: FAILED: "))
    assert "1 of 2 hosts serve" in run.log
    return line


def test_a_host_that_does_not_answer(fleet: Fleet, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    run = _beside(fleet, "gone", {"ssh_port": port})
    line = _fails_alone(run, "gone")
    assert "not reached" in line
    assert f"port {port} on 127.0.0.1" in line
    assert "is it on, and are ssh_hostname and ssh_port right?" in line


def test_a_wrong_key(fleet: Fleet, tmp_path: Path, server: SshServer) -> None:
    key = tmp_path / "other"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    known = server.known_hosts(tmp_path)
    run = _beside(
        fleet, "locked",
        {"ssh_port": server.port, "ssh_key": str(key), "ssh_known_hosts_file": str(known)},
    )  # fmt: skip
    line = _fails_alone(run, "locked")
    assert "not reached" in line
    assert "Authentication error (username=root" in line
    assert str(key) in line
    assert "authorized_keys on the host" in line


def test_a_changed_host_key(fleet: Fleet, tmp_path: Path, server: SshServer) -> None:
    known = server.known_hosts(tmp_path, paramiko.RSAKey.generate(2048))
    run = _beside(
        fleet, "swapped",
        {"ssh_port": server.port, "ssh_key": str(server.client_key),
         "ssh_known_hosts_file": str(known)},
    )  # fmt: skip
    line = _fails_alone(run, "swapped")
    assert "Host key for 127.0.0.1 does not match" in line
    assert "ssh-keygen -R" in line


def test_a_login_without_root_and_without_sudo(
    fleet: Fleet, tmp_path: Path, server: SshServer
) -> None:
    before = len(server.commands)
    known = server.known_hosts(tmp_path)
    run = _beside(
        fleet, "plain",
        {"ssh_port": server.port, "ssh_key": str(server.client_key), "ssh_user": "edge",
         "ssh_known_hosts_file": str(known)},
    )  # fmt: skip
    line = _fails_alone(run, "plain")
    assert "sudo: not found; log in as root, or let this user use sudo" in line
    assert all("sudo" in command for command in server.commands[before:])
