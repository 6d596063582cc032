"""Running things on a host from inside an operation, and sending it a stream of bytes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pyinfra import logger
from pyinfra.api import Host, State, StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import make_unix_command_for_host

from edge.mark import SAY, after
from edge.summary import Outcome, outcome_of, record

Arguments = Mapping[str, Any]
"""pyinfra's connector arguments (`_sudo` and the like), as a command takes them."""


class RemoteError(Exception):
    """A command on a host failed, or its connection did. The text is for the operator."""


@dataclass(frozen=True)
class Output:
    """What a command on a host gave."""

    ok: bool
    stdout: str
    stderr: str


def arguments_of(host: Host) -> dict[str, Any]:
    """The connector arguments of the operation that is being prepared for this host."""
    return connector_arguments(host.current_op_global_arguments or {})


def connector_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `run` and `stream` take of pyinfra's global arguments."""
    unwanted = ("_stdin", "_get_pty", "_timeout", "_success_exit_codes")
    return {k: v for k, v in given.items() if k in CONNECTOR_ARGUMENT_KEYS and k not in unwanted}


def run(host: Host, script: str, arguments: Arguments, stdin: str | None = None) -> Output:
    """Run a shell script on the host. Its output is without what the login shell said before.

    Raises:
        RemoteError: the connection failed. A script that fails is `Output.ok` False.
    """
    try:
        ok, output = host.run_shell_command(StringCommand(SAY + script), **arguments, _stdin=stdin)
    except Exception as error:  # paramiko and sockets raise many kinds
        raise RemoteError(f"the connection failed: {error or type(error).__name__}") from error
    return Output(ok, after("\n".join(output.stdout_lines)), "\n".join(output.stderr_lines))


def succeed(host: Host, script: str, arguments: Arguments, stdin: str | None = None) -> str:
    """Run a shell script that must succeed; returns its standard output.

    Raises:
        RemoteError: it failed; the text is what it wrote.
    """
    output = run(host, script, arguments, stdin)
    if not output.ok:
        raise RemoteError(output.stderr or output.stdout or "the command failed without a word")
    return output.stdout


def report(host: Host, text: str) -> None:
    """One line about a host, as pyinfra prints its own."""
    logger.info(f"{host.print_prefix}{text}")


def fail(host: Host, text: str, *, reason: str = "") -> None:
    """Say why a host fails, on as many lines as it takes.

    The table at the end repeats `reason`, or the first line.
    """
    if outcome_of(host.name) is None:
        record(host.name, Outcome(ok=False, reason=reason or text.partition("\n")[0]))
    for line in text.splitlines():
        logger.error(f"{host.print_prefix}{line}")


class Sink(Protocol):
    """Where the bytes of a stream go."""

    def write(self, data: bytes, /) -> object:
        """Send all of `data`; blocks while the host is slower."""


@contextmanager
def stream(state: State, host: Host, script: str, arguments: Arguments) -> Iterator[Sink]:
    """Run a shell script on the host with what is written to the sink as its standard input.

    Raises:
        RemoteError: at the end, when the script failed; during it, when the connection does.
    """
    connector = host.connector
    if isinstance(connector, FakeConnector):
        run(host, script, arguments)
        yield _Nowhere()
        return
    command = make_unix_command_for_host(state, host, StringCommand(script), **arguments)
    if isinstance(connector, LocalConnector):
        yield from _local(command.get_raw_value())
    elif isinstance(connector, SSHConnector):
        yield from _ssh(connector, command.get_raw_value())
    else:
        name = type(connector).__name__
        raise RemoteError(f"large files can be sent over SSH and to @local, not by {name}")


class _Nowhere:
    def write(self, data: bytes, /) -> None:
        pass


def _local(command: str) -> Iterator[Sink]:
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    try:
        yield process.stdin
        output, _ = process.communicate()
    except BrokenPipeError:
        output, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        raise RemoteError(output.decode(errors="replace").strip() or "the command failed")


def _ssh(connector: SSHConnector, command: str) -> Iterator[Sink]:
    assert connector.client is not None
    transport = connector.client.get_transport()
    assert transport is not None
    transport.set_keepalive(15)  # a long transfer over a NAT must not look idle
    channel = transport.open_session()
    try:
        channel.set_combine_stderr(True)
        channel.exec_command(command)
        try:
            yield _ChannelSink(channel)
            channel.shutdown_write()
        except OSError as error:
            if not channel.exit_status_ready():
                raise RemoteError(f"the connection failed: {error}") from error
        output = b"".join(iter(lambda: channel.recv(65536), b""))
        if channel.recv_exit_status() != 0:
            raise RemoteError(output.decode(errors="replace").strip() or "the connection was lost")
    finally:
        channel.close()


class _ChannelSink:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def write(self, data: bytes, /) -> None:
        self._channel.sendall(data)
