"""Operation: send a large file to a host: resumable, verified, moved into place by a rename."""

from __future__ import annotations

import shlex
import time
from collections.abc import Generator
from pathlib import Path, PurePosixPath
from typing import Any

from paramiko import SSHException
from pyinfra.api import FunctionCommand, Host, State, operation

from edge.operations.remote import (
    Arguments,
    RemoteError,
    arguments_of,
    fail,
    report,
    stream,
    succeed,
)
from edge.survey import MIB

CHUNK = 256 * 1024
PROGRESS_EVERY_S = 3.0


@operation()
def send(
    source: Path | None, path: str, sha256: str, *, label: str
) -> Generator[FunctionCommand, None, None]:
    """Send a file to `path` on the host.

    What an earlier, broken run has sent stays in `path`.part and is gone on from. The sum is
    checked on the host before the rename; then a stamp `.verified` beside the file keeps
    `sha256:size:mtime`, so that nobody has to read the whole file again to know it.

    Args:
        source: the verified file on the controller; None where the host has it.
        path: absolute path on the host.
        sha256: of the whole file.
        label: what to call it in messages.
    """
    if source is None:
        return
    from pyinfra import host  # the host in whose context the operation is prepared

    arguments = arguments_of(host)
    yield FunctionCommand(_send, (source, path, sha256, label, arguments), {})


def _send(
    state: State,
    host: Host,
    source: Path,
    path: str,
    sha256: str,
    label: str,
    arguments: dict[str, Any],
) -> bool:
    try:
        try:
            _transfer(state, host, source, path, sha256, label, arguments)
        except _WrongSumError as error:
            # A part that was begun with another file's bytes, or a bad disk: once from the start.
            report(host, f"{label}: {error}; sending it again from the start")
            _transfer(state, host, source, path, sha256, label, arguments)
    except (RemoteError, OSError, EOFError, SSHException) as error:
        why = str(error) or type(error).__name__
        fail(host, f"{label} was not sent: {why}\nThe next run goes on from what has arrived.")
        return False
    return True


class _WrongSumError(RemoteError):
    pass


def _transfer(
    state: State,
    host: Host,
    source: Path,
    path: str,
    sha256: str,
    label: str,
    arguments: Arguments,
) -> None:
    size = source.stat().st_size
    part = shlex.quote(path + ".part")
    folder = shlex.quote(str(PurePosixPath(path).parent))
    # A receiver that still waits for a controller that is gone (its network died) would wait for
    # hours: the latest run takes over.
    stale = (
        f"{{ pid=$(cat {part}.pid 2>/dev/null) && grep -qx cat /proc/$pid/comm 2>/dev/null && "
        f"kill $pid; rm -f {part}.pid; }};"
    )
    # A file that lost its stamp (a power cut before it reached the disk) is read, not sent again.
    quoted = shlex.quote(path)
    stamp = f"stat -c {sha256}:%s:%Y {quoted} > {folder}/.verified; sync {folder}/.verified"
    there = (
        f'if [ "$(stat -c %s {quoted} 2>/dev/null)" = {size} ]; then sum=$(sha256sum < {quoted}); '
        f'if [ "${{sum%% *}}" = {sha256} ]; then {stamp}; echo whole; exit 0; fi; fi;'
    )
    found = succeed(
        host,
        f"umask 022; mkdir -p {folder} && {stale} {there} "
        f"{{ stat -c %s {part} 2>/dev/null || echo 0; }} && "
        f"df -Pk {folder} | awk 'NR == 2 {{ print $4 }}'",
        arguments,
    ).split()
    if found == ["whole"]:
        report(host, f"{label}: it is there and whole")
        return
    begin, free = (int(found[0]), int(found[1]) * 1024) if len(found) == 2 else (0, size)
    if begin > size:
        succeed(host, f"rm -f {part}", arguments)
        begin = 0
    if free < size - begin:
        raise RemoteError(
            f"{(size - begin) // MIB} MiB are needed in {PurePosixPath(path).parent} and "
            f"{free // MIB} are free"
        )
    if begin:
        report(host, f"{label}: resuming at {begin // MIB} of {size // MIB} MiB")
    # Two runs that begin at the same moment must not write into one file: one of them is told.
    busy = "{ echo 'another run is sending it'; exit 9; }"
    receive = (
        f"exec 9>>{part} && {{ flock -w 5 9 || {busy}; }} && "
        f'{{ [ "$(stat -c %s {part})" = {begin} ] || {busy}; }} && '
        f"echo $$ > {part}.pid && exec cat >&9"
    )
    with stream(state, host, receive, arguments) as sink, source.open("rb") as file:
        file.seek(begin)
        progress = _Progress(host, label, begin, size)
        while chunk := file.read(CHUNK):
            sink.write(chunk)
            progress.add(len(chunk))
    finish = (
        f"set -eu; sum=$(sha256sum < {part}); "
        f'if [ "${{sum%% *}}" != {sha256} ]; then rm -f {part}; echo "wrong sum ${{sum%% *}}"; '
        f"exit 9; fi; chmod 644 {part}; sync {part}; rm -f {part}.pid; mv -f {part} {quoted}; "
        f"{stamp}"
    )
    try:
        succeed(host, finish, arguments)
    except RemoteError as error:
        if "wrong sum" in str(error):
            raise _WrongSumError(f"{error}, expected {sha256}") from None
        raise


class _Progress:
    """Says how far a transfer is, every few seconds."""

    def __init__(self, host: Host, label: str, done: int, size: int) -> None:
        self._host, self._label, self._done, self._size = host, label, done, size
        self._begin, self._began = done, time.monotonic()
        self._next = self._began + PROGRESS_EVERY_S

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now < self._next and self._done < self._size:
            return
        self._next = now + PROGRESS_EVERY_S
        speed = (self._done - self._begin) / MIB / max(now - self._began, 1e-6)
        report(
            self._host,
            f"{self._label}: {self._done // MIB} of {self._size // MIB} MiB "
            f"({100 * self._done // self._size}%, {speed:.0f} MiB/s)",
        )
