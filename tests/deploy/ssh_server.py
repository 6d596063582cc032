"""A real SSH server on loopback for what fake hosts cannot show: keys, host keys, no sudo, a host
that goes down and comes back."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko


@dataclass
class SshServer:
    """Runs commands by `sh` with a PATH that holds no programs: a host without sudo."""

    port: int
    host_key: paramiko.PKey
    client_key: Path
    """The private key that it lets in."""
    commands: list[str] = field(default_factory=list)
    answer: Callable[[str], tuple[int, str]] | None = None
    """Exit status and output of a command, instead of running it."""
    up: bool = True
    _open: list[paramiko.Transport] = field(default_factory=list)

    def go_down(self) -> None:
        """Cut every connection, and refuse others until `up` is True again."""
        self.up = False
        while self._open:
            self._open.pop().close()

    def known_hosts(self, folder: Path, key: paramiko.PKey | None = None) -> Path:
        """A known_hosts file with this server's key, or with another."""
        key = key or self.host_key
        path = folder / "known_hosts"
        path.write_text(f"[127.0.0.1]:{self.port} {key.get_name()} {key.get_base64()}\n")
        return path


class _Session(paramiko.ServerInterface):
    def __init__(self, allowed: paramiko.PKey, server: SshServer) -> None:
        self._allowed, self._server = allowed, server

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = key.asbytes() == self._allowed.asbytes()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._server.commands.append(command.decode())
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: str) -> None:
        # The client sends the end of its input once it has heard that the command was taken; an
        # answer that overtook that word would be lost.
        while channel.recv(65536):
            pass
        if self._server.answer is not None:
            code, text = self._server.answer(command)
            done = subprocess.CompletedProcess(command, code, text.encode(), b"")
        else:
            done = subprocess.run(
                ["/bin/sh", "-c", command], env={"PATH": "/nonexistent"}, capture_output=True,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        with suppress(OSError, EOFError):  # the client, or this host, may have left
            channel.sendall(done.stdout)
            channel.sendall_stderr(done.stderr)
            channel.send_exit_status(done.returncode)
            channel.close()


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Serve until the block ends."""
    host_key, allowed = paramiko.RSAKey.generate(2048), paramiko.RSAKey.generate(2048)
    client_key = folder / "client_key"
    allowed.write_private_key_file(str(client_key))
    listener = socket.create_server(("127.0.0.1", 0))
    server = SshServer(listener.getsockname()[1], host_key, client_key)

    def accept() -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                connection, _ = listener.accept()
                if not server.up:
                    connection.close()
                    continue
                transport = paramiko.Transport(connection)
                transport.add_server_key(host_key)
                server._open.append(transport)
                with suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=_Session(allowed, server))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        server.go_down()
