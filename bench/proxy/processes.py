"""Processes of a run: started on their CPU, measured from the kernel's figures, ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_END_S = 10.0


@dataclass(frozen=True)
class Placement:
    """Which CPUs the benchmark's own processes have, and which one the system under test."""

    tools: frozenset[int]
    system: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> Placement:
        """The last CPU is the system's alone; on a machine with one, all share it."""
        cpus = sorted(os.sched_getaffinity(0))
        return cls(frozenset(cpus[:-1] or cpus), frozenset(cpus[-1:]))


def settle(cpus: frozenset[int]) -> None:
    """Keep this process to `cpus`, and ahead of all that the machine does besides, if we may."""
    os.sched_setaffinity(0, cpus)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], cpus: frozenset[int], folder: Path, log: Path
) -> Iterator[int]:
    """Run `command` in `folder` with exactly `env`, its output in `log`; gives its pid.

    It and all its descendants are ended afterwards.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: settle(cpus),  # before it counts its CPUs
        )
    try:
        yield process.pid
    finally:
        family = tree(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(_END_S)


def tree(pid: int) -> list[int]:
    """`pid` and its descendants that run now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # after the name in brackets, which may hold anything: state, parent
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of processes with all their threads, those that ended included.

    The kernel's CPU clock of each process, in nanoseconds: /proc counts in steps of 10 ms.
    """
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def peak_rss_mib(pids: Sequence[int]) -> float:
    """Sum over the processes of VmHWM, the highest resident memory since their start."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return total / 1024
