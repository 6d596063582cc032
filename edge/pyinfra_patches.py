"""What pyinfra's command line lacks for this project; `config.py` installs it in pyinfra's process.

pyinfra 3.10 has no hooks for these, so a few of its private names are wrapped. pyproject.toml pins
the series, and tests/unit/test_pyinfra_patches.py runs the real command.
"""

from __future__ import annotations

import getpass
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pyinfra.connectors.sshuserclient.client as pyinfra_ssh_client
import pyinfra.connectors.util as pyinfra_connectors_util
import pyinfra_cli.cli as pyinfra_command
import pyinfra_cli.inventory as pyinfra_inventory
from paramiko import SSHException, Transport
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.sshuserclient.client import SSHClient, get_ssh_config
from pyinfra_cli.exceptions import CliError, UnexpectedExternalError

from edge.summary import Outcome, outcome_of, record

FLEET_FILE = "fleet.py"
GROUP_DATA = Path("inventory", "group_data")


def install() -> None:
    """Wrap pyinfra's command line. Safe to call more than once."""
    _wrap(pyinfra_command, "make_inventory", _make_inventory)
    _wrap(pyinfra_inventory, "_get_groups_from_filename", _groups)
    _wrap(pyinfra_command, "_get_inventory_pattern_matches", _pattern_matches)
    _wrap(pyinfra_command, "_apply_inventory_exclude", _apply_exclude)
    _wrap(pyinfra_connectors_util, "getpass", _ask_password)
    _wrap(SSHClient, "connect", _connect)
    _wrap(pyinfra_ssh_client, "append_hostkey", _remember_host)
    _wrap(pyinfra_command, "_do_confirm", _confirm)
    signal.signal(signal.SIGINT, _interrupted)
    # pyinfra says in one line what paramiko's threads log as tracebacks.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    _wrap(SSHConnector, "connect", _connect_host)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if getattr(original, "_edge_llm", False):
        return

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    wrapped._edge_llm = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def _make_inventory(
    original: Callable[..., Inventory],
    inventory: str,
    override_data: dict[str, Any] | None = None,
    cwd: str | None = None,
    group_data_directories: Iterable[str] | None = None,
) -> Inventory:
    """A directory means its fleet.py; a host list gets the checkout's group data as well."""
    _refuse_no_wait()
    path = Path(inventory)
    if path.is_dir():
        path = path / FLEET_FILE
        if not path.is_file():
            raise CliError(f"Inventory {inventory} is a directory without a {FLEET_FILE}.")
    directories = list(group_data_directories or ())
    if path.is_file():
        inventory = str(path)
    elif inventory.endswith(".py") or "/" in inventory.partition("@")[0]:
        raise CliError(f"No inventory file: {inventory}")
    else:
        # @local, or hosts by name: no file beside which a group_data directory could lie. First,
        # so that what --group-data names overrides it.
        directories.insert(0, str(Path(cwd or ".") / GROUP_DATA))
    try:
        made = original(inventory, override_data, cwd, directories)
    except (SyntaxError, UnexpectedExternalError) as error:
        raise CliError(_where(error)) from None
    if not len(made):
        raise CliError(
            f"Inventory {inventory} holds no hosts: it is neither a file that lists some nor a "
            "host name that resolves."
        )
    for host in made:
        if needs_sudo(host):
            made.host_data[host.name].setdefault("_sudo", True)
    return made


def _where(error: SyntaxError | UnexpectedExternalError) -> str:
    """File, line and message of a mistake in an inventory or a group_data file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    steps = traceback.extract_tb(error.exception.__traceback__)
    line = next((f", line {step.lineno}" for step in steps if step.filename == error.filename), "")
    name = type(error.exception).__name__
    return f"{error.filename}{line}: {name}: {error.exception}"


def _groups(original: Callable[[str], dict[str, Any]], inventory_filename: str) -> dict[str, Any]:
    """Each group gets its own data: pyinfra writes group_data into the dict that it finds there, so
    that a dict shared by two groups would carry the settings of one to the other."""
    groups = original(inventory_filename)
    return {
        name: (group[0], dict(group[1])) if isinstance(group, tuple) else group
        for name, group in groups.items()
    }


def _refuse_no_wait() -> None:
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get("no_wait"):
        raise CliError("--no-wait hides failed hosts (pyinfra then exits 0); leave it out.")


def needs_sudo(host: Host) -> bool:
    """Whether a host's login is not root's. A `_sudo` in its data decides instead.

    Not simply always: a minimal host has no sudo, and root needs none.
    """
    connector = host.connector_cls.__name__
    if host.data.get("_sudo") is not None:
        return False
    if connector == "LocalConnector":
        return os.geteuid() != 0
    return connector == "SSHConnector" and ssh_user(host) != "root"


def ssh_user(host: Host) -> str:
    """The user that pyinfra logs in as: the host's data, ~/.ssh/config, or the local user."""
    if user := host.data.get("ssh_user"):
        return str(user)
    # Not cached here: pyinfra reads the file once.
    if config := get_ssh_config(host.data.get("ssh_config_file")):
        found = config.lookup(host.data.get("ssh_hostname") or host.name)
        if user := found.get("user"):
            return str(user)
    return getpass.getuser()


def _pattern_matches(
    original: Callable[..., list[Host]],
    inventory: Inventory,
    patterns: Iterable[str],
    option_name: str,
) -> list[Host]:
    """Every pattern must match: a typo in --exclude would change the host that was to be spared."""
    patterns = list(patterns)
    for pattern in patterns:
        if not original(inventory, [pattern], option_name):
            raise CliError(f"{option_name} {pattern} matches no host. {_known(inventory)}")
    return original(inventory, patterns, option_name)


def _apply_exclude(
    original: Callable[..., list[Host] | None],
    inventory: Inventory,
    initial_limit: list[Host] | None,
    exclude: Iterable[str] | None,
) -> list[Host] | None:
    chosen = original(inventory, initial_limit, exclude)
    if chosen is not None and not chosen:
        raise CliError(f"--limit and --exclude together leave no host. {_known(inventory)}")
    return chosen


def _known(inventory: Inventory) -> str:
    hosts = ", ".join(host.name for host in inventory)
    groups = ", ".join(sorted(name for name, members in inventory.groups.items() if members))
    return f"Hosts: {hosts}. Groups: {groups or 'none'}."


def _ask_password(original: Callable[[str], str], prompt: str = "Password: ") -> str:
    """pyinfra asks for a sudo password in mid-run; with nobody there, that would end every host.

    An OSError is what it takes as the failure of one command on one host.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise OSError(
            "sudo wants a password and nobody is there to type it: allow this user NOPASSWD, log "
            "in as root, or set _sudo_password"
        )
    return original(prompt)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C is no success (pyinfra exits 0). Hosts end what they are at; the next run goes on."""
    click.echo("Interrupted. Run it again: it goes on from what has arrived.", err=True)
    sys.exit(128 + signal.SIGINT)


def _confirm(original: Callable[[str], bool], message: str) -> bool:
    """pyinfra waits for the enter key; with nobody there that would be a traceback."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise CliError("nobody is there to confirm: nothing was changed; add -y to do it unasked")
    return original(message)


def _connect(
    original: Callable[..., None], client: SSHClient, hostname: str, *args: Any, **kwargs: Any
) -> None:
    kwargs.setdefault("transport_factory", host_transport)
    original(client, hostname, *args, **kwargs)


def _remember_host(
    original: Callable[..., None], client: SSHClient, hostname: str, key: Any
) -> None:
    """A new host's key is written down, also where there is no ~/.ssh yet.

    Raises SSHException where that cannot be: pyinfra takes an OSError for a host that is away.
    """
    try:
        if file := client._host_keys_filename:
            Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        original(client, hostname, key)
    except OSError as error:
        raise SSHException(f"the host's key cannot be written down: {error}") from None


_WAYS_OUT = {
    "No authentication methods": "say how to log in: ssh_user and ssh_key, for all hosts in "
    "group_data/all.py, or a key in ssh-agent",
    "Authentication error": "check ssh_user and ssh_key: the public half of the key must stand in "
    "that user's ~/.ssh/authorized_keys on the host",
    "Could not resolve": "check the host's name, or set ssh_hostname to its address",
    "Could not connect": "is it on, and are ssh_hostname and ssh_port right?",
    "host key error": "if the host was installed anew, remove its old key from known_hosts with "
    "ssh-keygen -R; if not, somebody may be in between",
    "cannot be written down": "make that file writable, or set ssh_known_hosts_file to another",
    "No host key for": "log in once with ssh, compare the fingerprint with the host's and accept "
    "it, or set ssh_strict_host_key_checking = 'accept-new'",
}


def _connect_host(original: Callable[..., None], connector: SSHConnector) -> None:
    """A host that cannot be reached says what to do about it, again in the table at the end."""
    try:
        original(connector)
    except ConnectError as error:
        text = str(error).replace("[Errno None] ", "")  # paramiko's, where each address failed
        way_out = next((way for part, way in _WAYS_OUT.items() if part in text), "")
        text = f"{text}; {way_out}" if way_out else text
        if outcome_of(connector.host.name) is None:  # else it is being waited for after a reboot
            record(connector.host.name, Outcome(ok=False, reason=f"not reached: {text}"))
        raise ConnectError(text) from error


# A host whose power fails in the middle of a transfer sends nothing at all. Without these the
# controller would wait for it for ever: data that is not acknowledged for that long, or a silent
# peer after 15 + 3 x 5 s, ends the connection.
DEAD_AFTER_MS = 30_000
_SOCKET_OPTIONS = (  # by name: a controller that is not Linux lacks some
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", DEAD_AFTER_MS),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
)


def host_transport(sock: Any, **kwargs: Any) -> Transport:
    """A paramiko transport that notices a dead host, and whose small packets leave at once.

    TCP_NODELAY makes a command 7-13 ms instead of 54-62.
    """
    if isinstance(sock, socket.socket):  # not a ProxyCommand, nor a channel of a jump host
        for level, name, value in _SOCKET_OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(level, option, value)
    return Transport(sock, **kwargs)
