"""Processes that outlive the command that started them: known by pid and start time together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.paths import LabError

_KILL_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Process:
    """A process as it was recorded; the start time (clock ticks since boot) tells a reused pid."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now, or None."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command's name stands in brackets and may itself hold brackets and spaces.
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else cls(pid, int(fields[18]))

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def kill(self) -> None:
        """Kill it if it is still the same process."""
        if self.alive:
            kill_all([self.pid])


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each and wait until all are gone; raises LabError if one stays."""
    targets = [process for pid in pids if (process := Process.of(pid))]
    for process in targets:
        _kill(process.pid)
    wait_gone(targets)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_gone(processes: Iterable[Process], timeout_s: float = _KILL_TIMEOUT_S) -> None:
    """Wait for the end of processes; raises LabError with those that are left."""
    end = time.monotonic() + timeout_s
    left = list(processes)
    while left := [process for process in left if process.alive]:
        if time.monotonic() > end:
            raise LabError(f"processes {[p.pid for p in left]} do not end; see `ps -fp PID`")
        time.sleep(0.02)


def find(*words: str) -> list[int]:
    """Pids of the processes whose arguments hold all these words (whole arguments)."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if set(words) <= set(arguments) and int(directory.name) != os.getpid():
            found.append(int(directory.name))
    return found
