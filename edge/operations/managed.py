"""Operation: put a host's managed files in place, all in one round trip, each atomically."""

from __future__ import annotations

import base64
import io
import shlex
import tarfile
from collections.abc import Generator, Sequence
from pathlib import PurePosixPath

from pyinfra.api import StringCommand, operation

from edge.plan import STATE
from edge.render import ManagedFile


@operation()
def files(
    write: Sequence[ManagedFile], remove: Sequence[str] = (), then: Sequence[str] = ()
) -> Generator[StringCommand, None, None]:
    """Write and remove files, then run commands.

    Each file is written beside its place, flushed, and renamed, so that a power cut leaves the old
    or the new one. Owners must exist. The content travels on standard input, never in argv.

    Args:
        write: files that differ from what the host has.
        remove: absolute paths.
        then: shell commands to run at the end, in order; they alone also make a change.
    """
    if not write and not remove and not then:
        return
    yield StringCommand(_script(write, remove, then), _stdin=_archive(write))


def closed(folder: str) -> str:
    """Shell that leaves a folder to root, whoever may read it. What is in it stays as it is."""
    quoted = shlex.quote(folder)
    return f"chown root:root {quoted} && chmod go-w {quoted}"


def _script(write: Sequence[ManagedFile], remove: Sequence[str], then: Sequence[str]) -> str:
    lines = ["set -eu", "umask 077"]
    if write:
        lines += [
            f"mkdir -p {STATE}",
            f"new=$(mktemp -d {STATE}/.new.XXXXXX)",
            "trap 'rm -rf \"$new\"' EXIT",
            'base64 -d | tar -x -C "$new" -f -',
        ]
    for number, file in enumerate(write):
        path = shlex.quote(file.path)
        parent = shlex.quote(str(PurePosixPath(file.path).parent))
        beside = shlex.quote(file.path + ".edge-new")
        lines += [
            f"(umask 022; mkdir -p {parent})",
            f'cp "$new/{number}" {beside}',
            f"chmod {file.mode} {beside}",
            f"chown {file.owner} {beside}",
            f"sync {beside}",
            f"mv -f {beside} {path}",
        ]
    lines += [f"rm -f {shlex.quote(path)}" for path in remove]
    lines += then
    return "\n".join(lines)


def _archive(write: Sequence[ManagedFile]) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number, file in enumerate(write):
            member = tarfile.TarInfo(str(number))
            member.size = len(file.content)
            archive.addfile(member, io.BytesIO(file.content))
    return base64.b64encode(buffer.getvalue()).decode()
