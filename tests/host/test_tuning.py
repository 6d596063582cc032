"""Governor, idle states and their like as the kernel has them; watchdog; the journal's cap."""

from __future__ import annotations

import json
import re
import shlex

from checks import Say, Wrong, expect
from machine import TIMER, TUNING, Machine

from edge.knobs import PREFERENCE_FOLLOWS
from edge.plan import HostPlan
from edge.rivals import STOPPED
from edge.survey import MIB, IdleState
from edge.survey_script import seconds

CPU = "/sys/devices/system/cpu"
APPLY = "systemctl restart edge-llm-tuning.service sets it; the next rollout does, too"
LEFT_ALONE = ("kept", "left", "none")  # as the settings want it: no news


def _not_set(say: Say, reason: str) -> None:
    if reason.startswith(LEFT_ALONE):
        say.found(reason)
    else:
        say.note(reason)


def _check_knob(machine: Machine, plan: HostPlan, say: Say, key: str) -> None:
    knob = plan.tuning.knob(key)
    if not knob.value:
        _not_set(say, knob.reason)
        return
    out = machine.run(
        f"for f in {shlex.quote(machine.root)}{knob.path}; do [ -e $f ] || continue; d=${{f%/*}}; "
        f'echo "$f|$(cat $f)|$(cat $d/{knob.choices} 2>/dev/null)|'
        '$(cat $d/scaling_driver 2>/dev/null)|$(cat $d/scaling_governor 2>/dev/null)"; done'
    )
    right = 0
    for path, text, may, driver, governor in (line.split("|") for line in out.splitlines()):
        if knob.choices != "-" and knob.value not in re.sub(r"[][]", "", may).split():
            continue
        chosen = re.search(r"\[(.*)\]", text)
        found = chosen[1] if chosen else text
        if key == "epp" and driver in PREFERENCE_FOLLOWS and governor == knob.value:
            found = governor
        expect(knob.value, found, path.removeprefix(machine.root), APPLY)
        right += 1
    if not right:
        raise Wrong(knob.value, "no file that offers it", knob.path, APPLY)
    say.found(f"{knob.value} in {right} places" if right > 1 else knob.value)


def test_governor(machine: Machine, plan: HostPlan, say: Say) -> None:
    _check_knob(machine, plan, say, "governor")


def test_energy_preference(machine: Machine, plan: HostPlan, say: Say) -> None:
    _check_knob(machine, plan, say, "epp")


def test_energy_bias(machine: Machine, plan: HostPlan, say: Say) -> None:
    _check_knob(machine, plan, say, "energy_bias")


def test_platform_profile(machine: Machine, plan: HostPlan, say: Say) -> None:
    _check_knob(machine, plan, say, "platform_profile")


def test_huge_pages(machine: Machine, plan: HostPlan, say: Say) -> None:
    _check_knob(machine, plan, say, "huge_pages")


def test_idle_states(machine: Machine, plan: HostPlan, say: Say) -> None:
    """On every CPU: what is beyond the limit is off, and something is left that halts the CPU."""
    limit = plan.tuning.idle
    if not limit:
        _not_set(say, plan.tuning.reasons["idle_states"])
        return
    out = machine.run(
        "cd %s && for d in cpu[0-9]*/cpuidle/state[0-9]*; do [ -e $d/disable ] || continue; "
        'echo "$d $(cat $d/latency) $(cat $d/disable) $(cat $d/name)"; done',
        machine.root + CPU,
    )
    cpus: dict[int, list[IdleState]] = {}
    for line in out.splitlines():
        folder, latency, disabled, name = line.split(" ", 3)
        cpu, index = (int(number) for number in re.findall(r"\d+", folder))
        state = IdleState(index, name, int(latency), disabled != "0", cpu)
        cpus.setdefault(cpu, []).append(state)
    if not cpus:
        raise Wrong("idle states", "none", CPU, APPLY)
    for cpu, states in cpus.items():
        for state in states:
            if not limit.allows(state, states) and not state.disabled:
                where = f"{CPU}/cpu{cpu}/cpuidle/state{state.index}/disable"
                raise Wrong(f"1 ({state.name}, {state.latency_us} us)", "0", where, APPLY)
        if not [state for state in states if not state.disabled and state.name != "POLL"]:
            raise Wrong(
                "an idle state that halts the CPU",
                "only polling: it runs at full power when it is idle",
                f"{CPU}/cpu{cpu}/cpuidle, /proc/cmdline",
                "take out max_cstate=… parameters that are not edge-llm's, and reboot",
            )
    on = dict.fromkeys(s.name for states in cpus.values() for s in states if not s.disabled)
    off = sum(state.disabled for states in cpus.values() for state in states)
    say.found(f"{', '.join(on)} on {len(cpus)} CPUs; {off} states disabled")


def test_power_daemons(machine: Machine, plan: HostPlan, say: Say) -> None:
    """No other daemon sets what we set; where that is not ours to decide, it is said."""
    if not plan.tuning.knob("governor").value:
        say.found("no matter: the governor is not set here")
        return
    names = " ".join(rival.unit for rival in STOPPED)
    _, out, _ = machine.try_run(f"systemctl is-active {names}")
    active = [
        rival.unit
        for rival, state in zip(STOPPED, out.split(), strict=True)
        if state in ("active", "activating", "reloading")
    ]
    if not active:
        return
    if plan.tuning.stop_rivals:
        raise Wrong("stopped", f"{', '.join(active)} active", "systemctl is-active", APPLY)
    say.note(f"{', '.join(active)} may set the governor back (take_over_power_daemons = False)")


def test_zram_swap(machine: Machine, plan: HostPlan, say: Say) -> None:
    if not plan.tuning.zram_percent:
        _not_set(say, plan.tuning.reasons["zram"])
        return
    root = machine.root
    device = machine.run("cat %s 2>/dev/null; :", f"{root}/run/edge-llm-zram").partition(" ")[0]
    swaps = [line.split() for line in machine.read(f"{root}/proc/swaps").splitlines()[1:]]
    size = next((int(row[2]) * 1024 for row in swaps if row[0] == f"/dev/{device}"), 0)
    memory = dict(line.split()[:2] for line in machine.read(f"{root}/proc/meminfo").splitlines())
    wanted = int(memory["MemTotal:"]) * 1024 * plan.tuning.zram_percent // 100
    if abs(size - wanted) > MIB:  # its first page is the header
        raise Wrong(f"{wanted // MIB} MiB", f"{size // MIB} MiB", "/proc/swaps", APPLY)
    say.found(f"/dev/{device}, {size // MIB} MiB")


def test_hardware_watchdog(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = plan.tuning.watchdog_s
    if not wanted:
        _not_set(say, plan.tuning.reasons["watchdog"])
        return
    told = machine.run("systemctl show -P RuntimeWatchdogUSec")
    where = "systemctl show -P RuntimeWatchdogUSec"
    expect(wanted, seconds(told), where, "systemctl daemon-reexec")
    folder = "/sys/class/watchdog/watchdog0"
    if machine.exists(f"{folder}/state"):
        state = machine.read(f"{folder}/state")
        expect("active", state, f"{folder}/state", "journalctl -b _PID=1 has what systemd met")
        say.found(f"{machine.read(f'{folder}/identity')}: {machine.read(f'{folder}/timeout')} s")


def test_access_times(machine: Machine, plan: HostPlan, say: Say) -> None:
    if not plan.tuning.noatime:
        _not_set(say, plan.tuning.reasons["noatime"])
        return
    options = {
        row[1]: row[3].split(",")
        for row in map(str.split, machine.read(f"{machine.root}/proc/self/mounts").splitlines())
    }
    for mount in plan.tuning.noatime:
        found = options.get(mount, ["not mounted"])
        if "noatime" not in found:
            raise Wrong("noatime", ",".join(found), f"/proc/self/mounts: {mount}", APPLY)
    say.found(", ".join(plan.tuning.noatime))


def test_is_applied_at_each_boot(machine: Machine, say: Say) -> None:
    unit, timer = machine.units[TUNING], machine.units[TIMER]
    expect("enabled", unit["UnitFileState"], f"systemctl is-enabled {TUNING}")
    expect("enabled", timer["UnitFileState"], f"systemctl is-enabled {TIMER}")
    expect("active", timer["ActiveState"], f"systemctl is-active {TIMER}")
    if unit["ConditionResult"] == "no" and unit["ActiveState"] == "inactive":
        say.note("n/a: /sys is read-only here (a container)")
        return
    see = f"journalctl -u {TUNING}"
    expect("success", unit["Result"], f"systemctl show {TUNING}", see)
    if unit["ExecMainStartTimestampMonotonic"] == "0":
        raise Wrong("run since the boot", "not run", f"systemctl show {TUNING}", see)


def test_journal_is_capped(machine: Machine, plan: HostPlan, say: Say) -> None:
    cap = plan.journal_max_mib * MIB
    # journald says its limit each time that it starts; that may be vacuumed after some weeks.
    status, out, _ = machine.try_run(
        "journalctl -q -b -o json -n 1 --no-pager MESSAGE_ID=ec387f577b844b8fa948f33cad9a75e6 "
        "_PID=$(systemctl show -P MainPID systemd-journald.service)"
    )
    if status == 0 and out.strip():
        limit = int(json.loads(out.splitlines()[-1])["MAX_USE"])
        if limit > cap:
            raise Wrong(
                f"at most {plan.journal_max_mib} MiB",
                f"{limit // MIB} MiB",
                "what systemd-journald said when it started",
                "see `systemd-analyze cat-config systemd/journald.conf`, then systemctl restart "
                "systemd-journald.service",
            )
        say.found(f"{limit // MIB} MiB")
        return
    out = machine.run("systemd-analyze cat-config systemd/journald.conf")
    values = [line.partition("=")[2] for line in out.splitlines() if "SystemMaxUse=" in line[:13]]
    expect(f"{plan.journal_max_mib}M", values[-1] if values else "", "journald.conf and drop-ins")
