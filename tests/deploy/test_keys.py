"""API keys through a whole rollout: what is written, what is refused, what is never said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from edge.keys import ApiKey, make
from tests.deploy.conftest import Fleet
from tests.deploy.device import DEVICES

SERVICES, GATE = "Services | Files", "Gate | Switch and prove"
KEYS, ENV = "/etc/edge-llm/api-keys", "/etc/edge-llm/proxy.env"
UNIT = "/etc/systemd/system/chat-proxy.service"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def write(file: Path, *names: str) -> list[ApiKey]:
    made = [make(name)[1] for name in names]
    file.write_text("".join(key.line for key in made))
    return made


def test_keys_are_turned_on(fleet: Fleet, file: Path) -> None:
    made = write(file, "till", "kiosk")
    host = fleet.host(fleet.converged("n100"), "n100", api_keys_file=str(file))
    run = fleet.roll_out({"a": host})
    assert run.code == 0, run.log
    written = {path: data for each in run.told("a") for path, data in each.files.items()}
    assert set(written) == {KEYS, ENV, UNIT}
    found = json.loads(written[KEYS])["keys"]
    assert [key["sha256"] for key in found] == [key.sha256 for key in made]
    assert f"EDGE_PROXY_API_KEYS_FILE={KEYS}\n" in written[ENV].decode()
    assert "Who may ask: this host only, 2 keys." in run.log
    # Neither what is printed nor what is run holds a hash: files travel on standard input.
    for key in made:
        assert key.sha256 not in run.log + run.stdout
        assert not [each for each in run.told("a") if key.sha256 in each.command]


def test_changed_keys_are_written_and_no_unit(fleet: Fleet, file: Path) -> None:
    write(file, "till")
    device = fleet.converged("n100", api_keys_file=str(file))
    write(file, "till", "kiosk")
    run = fleet.roll_out({"a": fleet.host(device, "n100", api_keys_file=str(file))})
    assert run.code == 0, run.log
    assert [path for each in run.told("a") for path in each.files] == [KEYS]
    assert run.changed("a") == [SERVICES, GATE]


def test_keys_are_turned_off(fleet: Fleet, file: Path) -> None:
    write(file, "till")
    device = fleet.converged("n100", api_keys_file=str(file))
    run = fleet.roll_out({"a": fleet.host(device, "n100")})
    assert run.code == 0, run.log
    told = next(each for each in run.told("a") if each.operation == SERVICES)
    assert f"rm -f {KEYS}" in told.command
    assert set(told.files) == {ENV, UNIT}
    assert run.changed("a") == [SERVICES, GATE]


def test_a_file_of_keys_that_nobody_asked_for_is_removed(fleet: Fleet) -> None:
    device = fleet.converged("n100")
    line = f"{hashlib.sha256(b'').hexdigest()} 640 root:edge-llm {KEYS}"
    left = device.having(files=f"{device.sections['files']}\n{line}")
    run = fleet.roll_out({"a": fleet.host(left, "n100")})
    assert run.code == 0, run.log
    assert run.changed("a") == [SERVICES, GATE]


def test_a_network_without_keys_is_refused_for_all_hosts_at_once(fleet: Fleet, file: Path) -> None:
    file.write_text(f"till {'a' * 64} expires=2020-01-31\n")
    run = fleet.roll_out({
        "a": fleet.host(DEVICES["n100"], "n100", proxy_listen="0.0.0.0"),
        "b": fleet.host(DEVICES["ryzen"], "ryzen", proxy_listen="192.0.2.7",
                        api_keys_file=str(file)),
        "c": fleet.host(DEVICES["pi5"], "pi5"),
    })  # fmt: skip
    assert run.code != 0
    assert "2 problems in 2 hosts; nothing was changed" in run.log
    assert "@fake/a: proxy_listen = '0.0.0.0': serves the network" in run.log
    assert "@fake/b: proxy_listen = '192.0.2.7': serves the network" in run.log
    assert "every key has expired: run `edge key new NAME" in run.log
    assert not [each for name in "abc" for each in run.told(name) if each.operation]


def test_a_key_in_the_clear_is_refused_and_not_repeated(fleet: Fleet, file: Path) -> None:
    clear, _ = make("till")
    file.write_text(f"till {clear}\n")
    run = fleet.roll_out({"a": fleet.host(DEVICES["n100"], "n100", api_keys_file=str(file))})
    assert run.code != 0
    assert f"{file}, line 1: it holds a key in the clear" in run.log
    assert clear not in run.log + run.stdout
    assert run.told("a") == []
