"""Control groups of the hosts, so that limits inside a host are enforced: version 1 and 2.

Each host has two groups: `guest`, in which its systemd builds its own tree, and `lab`, in which the
supervisor runs (version 2 allows no process in a group that hands controllers to its children).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lab.paths import LabError
from lab.processes import kill_all

_TREE = Path("/sys/fs/cgroup")
_BASE = "edge-lab"
_KILL_TIMEOUT_S = 30.0
# Where systemd owns the version 2 tree, each supervisor is a unit with a delegated group.
_SLICE = "edgelab.slice"
# Hierarchies of version 1 that a host's systemd uses; cpuset and devices stay the machine's.
_V1_CONTROLLERS = {"cpu", "cpuacct", "memory", "pids", "blkio", "name=systemd"}


@dataclass(frozen=True)
class HostCgroup:
    """One host's groups, one directory for each hierarchy (version 2 has a single one)."""

    directories: tuple[Path, ...]
    unified: bool

    def join_files(self, leaf: str) -> list[Path]:
        """Make the leaf group and return the files that take a process's number to enter it."""
        files = []
        for directory in self.directories:
            (directory / leaf).mkdir(parents=True, exist_ok=True)
            files.append(directory / leaf / "cgroup.procs")
        return files

    def clear_guest(self) -> None:
        """Remove the groups of the last boot: version 2 lets nobody enter one that has children
        with controllers."""
        for directory in self.directories:
            _remove_tree(directory / "guest")

    def enable_controllers(self) -> None:
        """Version 2: hand every controller down to the host's groups.

        No process may be in the host's own directory any more. Raises LabError if the host's limits
        would not hold.
        """
        if not self.unified:
            return
        top = self.directories[0]
        # systemd has already handed them down to what it delegated, and minds its own groups.
        handing = [top] if systemd_owns_tree() else [_TREE, top.parent, top]
        for directory in handing:
            for controller in (directory / "cgroup.controllers").read_text().split():
                try:
                    (directory / "cgroup.subtree_control").write_text(f"+{controller}")
                except (
                    OSError
                ):  # one that cannot be shared (cpuset partitions, rt) is no reason to fail
                    continue

        handed = (top / "guest" / "cgroup.controllers").read_text().split()
        if absent := {"cpu", "memory", "pids"} - set(handed):
            raise LabError(
                f"this machine does not let control groups have {sorted(absent)}: limits inside "
                "the hosts would be ignored (see /sys/fs/cgroup/cgroup.controllers)"
            )

    def pids(self) -> list[int]:
        """Everything that runs in the host's groups, at any depth."""
        found: set[int] = set()
        for directory in self.directories:
            # os.walk, since groups come and go while we look.
            for group, _, _ in os.walk(directory):
                try:
                    words = Path(group, "cgroup.procs").read_text().split()
                except OSError:
                    continue
                found.update(int(word) for word in words)
        # A process of another pid namespace is shown as 0.
        return sorted(found - {0})

    def kill(self) -> None:
        """Kill everything inside, also what is forked meanwhile; returns when nothing is left.

        What has much memory takes a while to end, and is in its group until it has.
        """
        end = time.monotonic() + _KILL_TIMEOUT_S
        while pids := self.pids():
            if time.monotonic() > end:
                raise LabError(f"processes do not end in {self.directories[0]}: {pids}")
            kill_all(pids)
            time.sleep(0.02)

    def remove(self) -> None:
        """Remove the empty groups; the kernel may need a moment after the last process ended."""
        end = time.monotonic() + 5
        for top in self.directories:
            while not _remove_tree(top):
                if time.monotonic() > end:
                    raise LabError(f"the control group {top} is still in use")
                time.sleep(0.02)
            # The common parent goes with the last host.
            if top.parent.name == _BASE:
                _rmdir(top.parent)


def _remove_tree(top: Path) -> bool:
    """Remove a group and those in it; False if one is still in use."""
    for group, _, _ in os.walk(top, topdown=False):
        _rmdir(Path(group))
    return not top.exists()


def _rmdir(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def is_unified() -> bool:
    """True where /sys/fs/cgroup is a version 2 tree."""
    return (_TREE / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if is_unified():
        return [_TREE]
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        wanted = kind == "cgroup2" or (
            kind == "cgroup" and _V1_CONTROLLERS & set(options.split(","))
        )
        if wanted and Path(mount).is_relative_to(_TREE):
            found.append(Path(mount))
    if not found:
        raise LabError(
            "no control groups are mounted under /sys/fs/cgroup: the lab's hosts run systemd, "
            "which cannot start without them (in a container, give it its own cgroups)"
        )
    return found


def systemd_owns_tree() -> bool:
    """True where this machine's systemd manages a version 2 tree, and groups are asked of it."""
    return is_unified() and Path("/run/systemd/system").is_dir()


def unit_name(host: str) -> str:
    """The systemd unit of a host's supervisor, where systemd owns the tree."""
    return f"{host}.service"


def unit_command(host: str, log: Path, directory: Path) -> list[str]:
    """The words before a supervisor's command that give it a group of its own from systemd."""
    if not systemd_owns_tree():
        return []
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={unit_name(host)}",
        f"--slice={_SLICE}",
        "--property=Delegate=yes",
        "--property=KillMode=control-group",
        f"--property=StandardOutput=append:{log}",
        f"--property=StandardError=append:{log}",
        f"--working-directory={directory}",
    ]


def of_host(host: str) -> HostCgroup:
    """A host's groups, by naming convention alone (they need not exist)."""
    if systemd_owns_tree():
        return HostCgroup((_TREE / _SLICE / unit_name(host),), unified=True)
    return HostCgroup(tuple(h / _BASE / host for h in _hierarchies()), is_unified())


def hosts() -> list[str]:
    """Names of all hosts (of all labs) that have groups on this machine."""
    if systemd_owns_tree():
        return sorted(unit.stem for unit in (_TREE / _SLICE).glob("*.service"))
    found = {path.name for h in _hierarchies() for path in (h / _BASE).glob("*") if path.is_dir()}
    return sorted(found)
