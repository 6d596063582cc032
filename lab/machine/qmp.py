"""QEMU's machine protocol: JSON lines on a socket, commands from us and events from the machine."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lab.paths import LabError

_CONNECT_TIMEOUT_S = 20.0


class QmpError(LabError):
    """The machine refused a command, or is gone."""


class Qmp:
    """One machine's monitor, past its greeting. events holds what arrived beside the answers."""

    def __init__(self, path: Path, alive: Callable[[], None] = lambda: None) -> None:
        """Connect to the socket at path. Raises QmpError if no machine answers there in time.

        alive: called while it does not, to raise if there will never be one.
        """
        self._socket = connect(path, alive)
        self._file: BinaryIO = self._socket.makefile("rb")
        self.events: list[dict[str, Any]] = []
        self._read()  # the greeting
        self.run("qmp_capabilities")

    def run(self, command: str, **arguments: Any) -> Any:
        """What a command returns; raises QmpError if the machine refuses it."""
        line = json.dumps({"execute": command, "arguments": arguments})
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise QmpError(f"{command}: the machine is gone ({error})") from error
        while True:
            message = self._read()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise QmpError(f"{command}: {message['error'].get('desc')}")
            else:
                return message["return"]

    def wait_events(self) -> Iterator[dict[str, Any]]:
        """Events as they come, those of before first, until the machine is gone."""
        while True:
            while self.events:
                yield self.events.pop(0)
            try:
                message = self._read()
            except QmpError:
                return
            if "event" in message:
                self.events.append(message)

    def _read(self) -> dict[str, Any]:
        try:
            line = self._file.readline()
        except OSError as error:
            raise QmpError(f"the machine is gone ({error})") from error
        if not line:
            raise QmpError("the machine is gone")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Qmp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(path: Path, alive: Callable[[], None]) -> socket.socket:
    """A connection to a Unix socket that may not be there yet, however long its path is.

    Raises QmpError if it does not get there, or what alive raises.
    """
    end = time.monotonic() + _CONNECT_TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with _short(path) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            alive()
            if time.monotonic() > end:
                raise QmpError(f"no machine answers at {path}: {error}") from error
            time.sleep(0.05)
        else:
            return connection


@contextmanager
def _short(path: Path) -> Iterator[str]:
    # A socket's address has room for 107 characters; the directory's descriptor stands for it.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
