"""What a process has loaded and how much memory it uses, by /proc and its control group."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from .paths import Paths


def cpu_variant(paths: Paths, pid: int) -> str | None:
    """The CPU library that the engine has loaded ("alderlake"), from its memory map."""
    with contextlib.suppress(OSError):
        text = paths.at(f"/proc/{pid}/maps").read_text(errors="replace")
        if found := re.search(r"/libggml-cpu-([\w.]+?)\.so", text):
            return found[1]
    return None


def mapped_file_is_gone(paths: Paths, pid: int, path: str) -> bool:
    """Whether a process has a file mapped that is no longer the one at that path."""
    with contextlib.suppress(OSError):
        lines = paths.at(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        return any(line.endswith(f" {path} (deleted)") for line in lines)
    return False


def memory_group(paths: Paths, pid: int) -> tuple[int, Path] | None:
    """Version and directory of the control group that accounts a process's memory."""
    groups: dict[str, str] = {}  # controller to path; "" is version 2
    for line in paths.at(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    for line in paths.at("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            version, path = 1, groups["memory"]
        elif kind == "cgroup2" and "" in groups and "memory" not in groups:
            version, path = 2, groups[""]
        else:
            continue
        # The path counts from the hierarchy's root, or from a namespace's; the mount may show a
        # part of it. The right directory is the one that holds the process.
        shown = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
        directory = paths.at(mount) / shown
        with contextlib.suppress(OSError):
            if str(pid) in (directory / "cgroup.procs").read_text().split():
                return version, directory
    return None


def memory(paths: Paths, pid: int) -> dict[str, int | None]:
    """Bytes in use and allowed in a process's own control group; None for what is not known."""
    figures: dict[str, int | None] = dict.fromkeys(("current", "anon", "file", "max"))
    with contextlib.suppress(OSError, ValueError):
        if found := memory_group(paths, pid):
            version, group = found
            v1 = version == 1
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            usage = group / ("memory.usage_in_bytes" if v1 else "memory.current")
            figures["current"] = int(usage.read_text())
            figures["anon"] = int(stat["total_rss" if v1 else "anon"])
            figures["file"] = int(stat["total_cache" if v1 else "file"])
            limit = (group / ("memory.limit_in_bytes" if v1 else "memory.max")).read_text().strip()
            # Version 1 writes "no limit" as the largest number of pages.
            figures["max"] = None if limit == "max" or int(limit) >= 1 << 62 else int(limit)
    return figures
