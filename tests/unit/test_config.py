"""config.py in the real `pyinfra`: inventories, selections, sudo, SSH."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from edge.fleet import CHECKOUT
from edge.settings import CONNECTOR_KEYS, HARDWARE_GROUPS, Settings, check_host
from tests.unit.command import closed_port, pyinfra, python

FLEET = {"192.0.2.11", "kiosk-entrance", "192.0.2.21", "198.51.100.31"}


def inventory_of(*arguments: str) -> dict[str, Any]:
    run = pyinfra(*arguments, "debug-inventory", "--json")
    assert run.returncode == 0, run.stderr
    return {host["name"]: host for host in json.loads(run.stdout)}


@pytest.mark.parametrize("inventory", ["inventory", "inventory/", "inventory/fleet.py"])
def test_the_directory_is_its_fleet(inventory: str) -> None:
    hosts = inventory_of(inventory)
    assert set(hosts) == FLEET
    assert set(hosts["198.51.100.31"]["groups"]) == {"pi5", "fleet"}
    assert hosts["kiosk-entrance"]["data"]["ssh_hostname"] == "192.0.2.12"


def test_as_it_is_typed() -> None:
    command = [str(Path(sys.executable).with_name("pyinfra")), "inventory", "debug-inventory"]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "kiosk-entrance" in run.stdout + run.stderr


def project(tmp_path: Path, fleet: str, **group_data: str) -> str:
    """An inventory directory with that fleet.py and those group_data files."""
    folder = tmp_path / "inventory"
    (folder / "group_data").mkdir(parents=True)
    (folder / "fleet.py").write_text(fleet)
    for name, text in group_data.items():
        (folder / "group_data" / f"{name}.py").write_text(text)
    return str(folder)


def test_group_data_beside_the_fleet(tmp_path: Path) -> None:
    place = project(tmp_path, "n100 = ['a']\npi5 = ['b']\n", all="slots = 3\n", pi5="slots = 1\n")
    hosts = inventory_of(place)
    assert hosts["a"]["data"]["slots"] == 3
    assert hosts["b"]["data"]["slots"] == 1


def suggestions(name: str) -> dict[str, Any]:
    """What a group_data file of the checkout offers in comments, uncommented."""
    text = (CHECKOUT / "inventory" / "group_data" / f"{name}.py").read_text(encoding="utf-8")
    code = re.findall(r"^# (\w+ = .*|    .*|\))$", text, re.MULTILINE)
    offered: dict[str, Any] = {}
    exec("\n".join(code), {}, offered)
    return offered


def test_the_defaults_shown_in_group_data_are_the_defaults() -> None:
    offered = suggestions("all")
    shown = {key: offered[key] for key in offered if key in Settings.model_fields}
    assert len(shown) >= 12
    assert shown == {key: getattr(Settings(), key) for key in shown}
    assert offered.keys() - shown.keys() <= {*CONNECTOR_KEYS, "_sudo"}


@pytest.mark.parametrize("name", HARDWARE_GROUPS)
def test_what_group_data_suggests_is_valid(name: str) -> None:
    offered = suggestions(name)
    assert offered
    assert check_host("box", offered)[1] == []


def test_groups_that_share_a_dict_keep_their_data_apart(tmp_path: Path) -> None:
    fleet = "_login = {'ssh_user': 'u'}\nn100 = (['a'], _login)\npi5 = (['b'], _login)\n"
    hosts = inventory_of(project(tmp_path, fleet, n100="slots = 4\n"))
    assert hosts["a"]["data"]["slots"] == 4
    assert hosts["b"]["data"]["ssh_user"] == "u"
    assert "slots" not in hosts["b"]["data"]


def test_hosts_without_a_file_get_the_checkouts_group_data(tmp_path: Path) -> None:
    (tmp_path / "config.py").symlink_to(CHECKOUT / "config.py")
    project(tmp_path, "n100 = []\n", all="slots = 3\n")
    extra = tmp_path / "extra"
    extra.mkdir()
    for inventory in ("@local", "192.0.2.1,192.0.2.2"):
        for host in inventory_of("--chdir", str(tmp_path), inventory).values():
            assert host["data"]["slots"] == 3
    (extra / "all.py").write_text("slots = 5\n")
    told = inventory_of("--chdir", str(tmp_path), "--group-data", str(extra), "@local")
    assert told["@local"]["data"]["slots"] == 5


def test_another_inventory_is_not_given_the_checkouts_group_data(tmp_path: Path) -> None:
    (tmp_path / "config.py").symlink_to(CHECKOUT / "config.py")
    project(tmp_path, "n100 = []\n", all="slots = 3\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text("n100 = ['a']\n")
    hosts = inventory_of("--chdir", str(tmp_path), "other/mine.py")
    assert "slots" not in hosts["a"]["data"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inventory", "--limit", "typo"], "--limit typo matches no host. Hosts: 192.0.2.11, "),
        (["inventory", "--limit", "typo"], "Groups: fleet, n100, pi5, ryzen."),
        (["inventory", "--limit", "n100", "--limit", "n10"], "--limit n10 matches no host."),
        (["inventory", "--exclude", "n10"], "--exclude n10 matches no host."),
        (["inventory", "--exclude", "fleet"], "--limit and --exclude together leave no host."),
        (["docs"], "Inventory docs is a directory without a fleet.py."),
        (["inventory/flete.py"], "No inventory file: inventory/flete.py"),
        (["no-such-host.invalid"], "Inventory no-such-host.invalid holds no hosts"),
        (["inventory", "--no-wait"], "--no-wait hides failed hosts"),
    ],
)
def test_a_run_that_would_do_nothing_or_hide_a_failure_is_refused(
    arguments: list[str], message: str
) -> None:
    run = pyinfra(*arguments, "exec", "--", "true")
    assert run.returncode == 1
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert "Connecting" not in run.stderr


def test_an_empty_fleet_is_refused(tmp_path: Path) -> None:
    run = pyinfra(project(tmp_path, "n100 = []\n"), "exec", "--", "true")
    assert run.returncode == 1
    assert "holds no hosts" in run.stderr


def test_a_selection_works() -> None:
    run = pyinfra("inventory", "--limit", "pi5", "--limit", "192.0.2.1*", "debug-inventory")
    assert run.returncode == 0, run.stderr


def test_sudo_only_where_the_login_is_not_root(tmp_path: Path) -> None:
    fleet = (
        "n100 = [('a', {'ssh_user': 'root'}), ('b', {'ssh_user': 'edge'}),"
        " ('c', {'ssh_user': 'edge', '_sudo': False}), '@local', '@fake/d']\n"
    )
    hosts = inventory_of(project(tmp_path, fleet))
    assert {name: host["data"].get("_sudo") for name, host in hosts.items()} == {
        "a": None,
        "b": True,
        "c": False,
        "@local": None if os.geteuid() == 0 else True,
        "@fake/d": None,
    }


def test_the_user_of_ssh_config_counts(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host a\n  User root\nHost b\n  User edge\n")
    fleet = f"n100 = (['a', 'b'], {{'ssh_config_file': {str(config)!r}}})\n"
    hosts = inventory_of(project(tmp_path, fleet))
    assert "_sudo" not in hosts["a"]["data"]
    assert hosts["b"]["data"]["_sudo"] is True


def test_an_unreachable_host_fails_the_run_and_is_named(tmp_path: Path) -> None:
    gone = f"('gone', {{'ssh_hostname': '127.0.0.1', 'ssh_port': {closed_port()}}})"
    place = project(tmp_path, f"n100 = [{gone}, ('@local', {{'_sudo': False}})]\n")
    run = pyinfra(place, "exec", "-y", "--", "echo", "here")
    assert run.returncode == 1
    assert "[gone]" in run.stderr
    assert "Could not connect (Unable to connect to port" in run.stderr
    assert "here" in run.stderr


class _Server(paramiko.ServerInterface):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"


@pytest.fixture
def ssh_server(tmp_path: Path) -> Iterator[tuple[int, Path, Path]]:
    """An SSH server that lets a key in: its port, the key, and known_hosts."""
    host_key, key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(tmp_path / "key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        entry = f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n"
        (tmp_path / "known_hosts").write_text(entry)
        transports: list[paramiko.Transport] = []

        def serve() -> None:
            connection, _ = listener.accept()
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(host_key)
            transport.start_server(server=_Server())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield port, tmp_path / "key", tmp_path / "known_hosts"
        thread.join(10)
        for transport in transports:
            transport.close()


CONNECT = """
import socket, sys
import pyinfra_cli  # patches the standard library, as the command does
import paramiko
from edge import pyinfra_patches
from pyinfra.connectors.sshuserclient import SSHClient

if sys.argv[1] == "patched":
    pyinfra_patches.install()
    pyinfra_patches.install()  # twice does no harm
client = SSHClient()
client.connect(
    "127.0.0.1", port=int(sys.argv[2]), username="edge", allow_agent=False, look_for_keys=False,
    pkey=paramiko.ECDSAKey.from_private_key_file(sys.argv[3]),
    _pyinfra_ssh_known_hosts_file=sys.argv[4], _pyinfra_ssh_strict_host_key_checking=sys.argv[5],
)
sock = client.get_transport().sock
tcp = [socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT]
print(*(sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp))
client.close()
"""


@pytest.mark.parametrize(("how", "options"), [("patched", "1 30000"), ("plain", "0 0")])
def test_ssh_connections_send_at_once_and_notice_a_dead_host(
    ssh_server: tuple[int, Path, Path], how: str, options: str
) -> None:
    run = python("-c", CONNECT, how, *map(str, ssh_server), "yes")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == options


def test_a_new_host_is_remembered_where_there_is_no_folder_for_it(
    ssh_server: tuple[int, Path, Path], tmp_path: Path
) -> None:
    port, key, known_hosts = ssh_server
    file = tmp_path / "home" / ".ssh" / "known_hosts"
    run = python("-c", CONNECT, "patched", str(port), str(key), str(file), "accept-new")
    assert run.returncode == 0, run.stderr
    assert file.read_text() == known_hosts.read_text()
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_host_that_cannot_be_remembered_is_not_said_to_be_away(
    ssh_server: tuple[int, Path, Path], tmp_path: Path
) -> None:
    port, key, _ = ssh_server
    login = {
        "ssh_hostname": "127.0.0.1", "ssh_port": port, "ssh_key": str(key), "ssh_user": "root",
        "ssh_known_hosts_file": str(key / "known_hosts"), "ssh_config_file": "/dev/null",
        "ssh_strict_host_key_checking": "accept-new",
    }  # fmt: skip
    place = project(tmp_path, f"n100 = [('new', {login!r})]\n")
    run = pyinfra(place, "exec", "-y", "--", "true")
    assert run.returncode == 1
    assert f"cannot be written down: [Errno 17] File exists: '{key}'" in run.stderr
    assert "set ssh_known_hosts_file to another" in run.stderr
    assert "is it on" not in run.stderr


def test_a_proxy_command_has_no_tcp_options() -> None:
    code = (
        "import pyinfra_cli, paramiko, edge.pyinfra_patches as p\n"
        "p.host_transport(paramiko.ProxyCommand('cat')).close()\n"
    )
    assert python("-c", code).returncode == 0


PASSWORD = """
import pyinfra_cli
from edge import pyinfra_patches
pyinfra_patches.install()
import pyinfra.connectors.util as util
try:
    util.getpass("sudo password: ")
except OSError as error:
    print(error)
"""


def test_a_sudo_password_with_nobody_there_is_the_failure_of_one_host() -> None:
    run = python("-c", PASSWORD)
    assert run.stdout.startswith("sudo wants a password and nobody is there to type it"), run.stderr
