"""What systemd does, says and has logged; what a service's process was started with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from .paths import Paths
from .result import Failed

PROPERTIES = (
    "Id,ActiveState,Result,MainPID,NRestarts,NeedDaemonReload,UnitFileState,FragmentPath,"
    "DropInPaths,EnvironmentFiles,ExecMainStartTimestampMonotonic,ActiveEnterTimestampMonotonic,"
    "ExecMainCode,ExecMainStatus"
)
Shown = dict[str, dict[str, str]]
JOURNAL_LINES = 20


def systemctl(paths: Paths, *arguments: str, timeout_s: float = 90) -> str:
    """Run systemctl; raises Failed with what it said."""
    command = [paths.systemctl, *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"systemctl {' '.join(arguments)}: no end after {timeout_s:.0f} s") from None
    if done.returncode != 0:
        words = (
            " ".join(done.stderr.decode(errors="replace").split())
            or f"exit status {done.returncode}"
        )
        raise Failed(f"systemctl {' '.join(arguments)}: {words[:300]}")
    return done.stdout.decode(errors="replace")


def show(paths: Paths, *units: str) -> Shown:
    """The state of units, as systemd names its properties."""
    text = systemctl(paths, "show", "-p", PROPERTIES, *units)
    shown: Shown = {}
    for unit, block in zip(units, text.strip().split("\n\n"), strict=True):
        properties: dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            properties[key] = f"{properties[key]} {value}" if key in properties else value
        shown[unit] = properties
    return shown


def running(paths: Paths, shown: Shown, unit: str) -> tuple[int, dict[str, str]]:
    """A service's main process and its environment; (0, {}) if it does not run."""
    properties = shown[unit]
    pid = int(properties.get("MainPID") or 0)
    if properties.get("ActiveState") not in ("active", "activating", "reloading") or pid == 0:
        return 0, {}
    try:
        text = paths.at(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return 0, {}
    return pid, dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


def running_digest(paths: Paths, shown: Shown, unit: str) -> str:
    return running(paths, shown, unit)[1].get("EDGE_LLM_DIGEST", "")


def journal(paths: Paths, units: Iterable[str]) -> list[str]:
    """The last lines of the units' journal."""
    chosen = [word for unit in units for word in ("-u", unit)]
    if not chosen:
        return []
    lines = ["-n", str(JOURNAL_LINES), "--no-pager", "-q", "-o", "short-iso"]
    try:
        for arguments in (["--sync"], [*chosen, *lines]):
            done = subprocess.run(
                [paths.journalctl, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"(the journal could not be read: {error})"]
    return done.stdout.decode(errors="replace").splitlines()
