"""Running the programs of this machine, and knowing whose files to write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.paths import LabError

# Words before a command that must not outlive the process that starts it, however that ends.
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def run(command: Sequence[str], *, stdin: str | None = None, timeout_s: float | None = None) -> str:
    """Run a command and return its stdout; raises LabError with its last words if it fails."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not installed, and the lab needs it") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)}: no end after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-600:]
        raise LabError(f"{' '.join(command)} failed ({done.returncode}): {words}")
    return done.stdout


def quiet(command: Sequence[str]) -> bool:
    """Run a command whose failure is an answer, not an error; True if it succeeded."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def person() -> tuple[int, int]:
    """(uid, gid) of the person who called: the caller of sudo where there is one."""
    return (
        int(os.environ.get("SUDO_UID", os.getuid())),
        int(os.environ.get("SUDO_GID", os.getgid())),
    )


def give_to_person(*paths: Path) -> None:
    """Let the person who called sudo own (and so read) these files."""
    if os.getuid() == 0:
        for path in paths:
            os.chown(path, *person(), follow_symlinks=False)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file's whole content at once, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)
