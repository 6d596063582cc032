"""Units: running, enabled, sandboxed, and not restarting all the time."""

from __future__ import annotations

import json
import re

from checks import Say, Wrong, expect
from machine import ENGINE, PROXY, UNITS, Machine, Process

from edge.plan import STATE
from edge.render import ENABLED_UNITS
from edge.render import UNITS as UNIT_FILES

# Out of 10. systemd 257 says 1.2 for the engine and 1.4 for the proxy; other versions weigh a
# little otherwise. An unsandboxed service has 9.6.
MOST_EXPOSED = 2.0
YOUNG_S = 120  # a process that systemd restarted this recently may be one of a series


def test_run_and_start_at_boot(machine: Machine) -> None:
    shown = {unit: machine.units[unit] for unit in ENABLED_UNITS}
    if down := {unit: of for unit, of in shown.items() if of["ActiveState"] != "active"}:
        found = ", ".join(f"{unit} {_state(of)}" for unit, of in down.items())
        see = f"journalctl {' '.join(f'-u {unit}' for unit in down)}; the next rollout starts "
        see += "it" if len(down) == 1 else "them"
        raise Wrong("active", found, f"systemctl is-active {' '.join(down)}", see)
    for unit, of in shown.items():
        expect("enabled", of["UnitFileState"], f"systemctl is-enabled {unit}")


def _state(shown: dict[str, str]) -> str:
    """Its state, and systemd's word for how it ended if that was no good end."""
    state, result = shown["ActiveState"], shown["Result"]
    return state if result == "success" else f"{state} ({result})"


def test_systemd_has_read_the_files(machine: Machine) -> None:
    """Our own unit files, as they are now on the disk."""
    for unit in UNITS:
        shown = machine.units[unit]
        expect(f"{UNIT_FILES}/{unit}", shown["FragmentPath"], f"systemctl show {unit}")
        if shown["NeedDaemonReload"] != "no":
            raise Wrong(
                "what systemd read", "a file that was changed since", f"{UNIT_FILES}/{unit}"
            )


def test_sandbox(machine: Machine, say: Say) -> None:
    marks = {}
    for unit in (ENGINE, PROXY):
        out = machine.run("systemd-analyze security --no-pager %s", unit)
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", out)
        marks[unit] = float(found[1]) if found else 10.0
        if marks[unit] > MOST_EXPOSED:
            where = f"systemd-analyze security {unit}"
            raise Wrong(f"exposure of at most {MOST_EXPOSED}", marks[unit], where)
    say.found(", ".join(f"{unit} {mark}" for unit, mark in marks.items()))


def test_privileges(machine: Machine) -> None:
    """What the kernel says of the running processes."""
    wanted = {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16, "CapPrm": "0" * 16,
              "CapBnd": "0" * 16}  # fmt: skip
    for process in (machine.engine, machine.proxy):
        found = {key: process.status.get(key) for key in wanted}
        expect(wanted, found, f"/proc/{process.pid}/status ({process.unit})")


def test_no_restart_loop(machine: Machine, say: Say) -> None:
    """Restarts by systemd itself since the rollout, and during these checks."""
    manifest = json.loads(machine.read(f"{STATE}/manifest.json"))
    recorded = manifest.get("gate", {}).get("restarts", {})
    now = machine.show()
    uptime = float(machine.read("/proc/uptime").split()[0])
    for process in (machine.engine, machine.proxy):
        unit = process.unit
        see = f"journalctl -u {unit}"
        if int(now[unit]["MainPID"]) != process.pid:
            raise Wrong("the same process as before", "it was restarted meanwhile", unit, see)
        _check_restarts(process, now[unit], uptime, int(recorded.get(unit, 0)), say, see)


def _check_restarts(
    process: Process, shown: dict[str, str], uptime: float, recorded: int, say: Say, see: str
) -> None:
    # systemd counts from the last start that was asked for, which may be later than the record.
    restarts = int(shown["NRestarts"])
    new = restarts - recorded if restarts >= recorded else restarts
    age = uptime - int(shown["ExecMainStartTimestampMonotonic"]) / 1e6
    if new and age < YOUNG_S:
        found = f"restarted by systemd {new} times, last {age:.0f} s ago"
        raise Wrong("no restarts", found, process.unit, see)
    if new:
        say.note(f"{process.unit} was restarted by systemd {new} times since the rollout ({see})")
