"""CPU governor and idle states as the kernel has them; the journal's cap."""

from __future__ import annotations

import json

from checks import Say, Wrong, expect
from machine import TUNING, Machine

from edge.plan import HostPlan
from edge.survey import MIB

CPU = "/sys/devices/system/cpu"
APPLY = "systemctl restart edge-llm-tuning.service sets it; the next rollout does, too"


def _policies(machine: Machine, value: str, choices: str) -> dict[str, tuple[str, set[str]]]:
    """By cpufreq policy: a setting's value, and what it may be."""
    out = machine.run(
        "for p in %s/cpufreq/policy[0-9]*; do [ -e $p/%s ] || continue; "
        "echo $p/%s; cat $p/%s; cat $p/%s 2>/dev/null || echo; done",
        machine.root + CPU, value, value, value, choices,
    ).splitlines()  # fmt: skip
    return {out[i]: (out[i + 1], set(out[i + 2].split())) for i in range(0, len(out) - 2, 3)}


def _check_policies(
    machine: Machine, say: Say, wanted: str, reason: str, value: str, choices: str
) -> None:
    if not wanted:
        say.note(reason)
        return
    policies = _policies(machine, value, choices)
    offering = {path: found for path, (found, may) in policies.items() if wanted in may}
    if not offering:
        raise Wrong(wanted, "no cpufreq policy that offers it", f"{CPU}/cpufreq", APPLY)
    for path, found in offering.items():
        expect(wanted, found, path.removeprefix(machine.root), APPLY)
    say.found(f"{wanted} on {len(offering)} policies")


def test_governor(machine: Machine, plan: HostPlan, say: Say) -> None:
    tuning = plan.tuning
    _check_policies(
        machine, say, tuning.governor, tuning.reasons["governor"],
        "scaling_governor", "scaling_available_governors",
    )  # fmt: skip


def test_energy_preference(machine: Machine, plan: HostPlan, say: Say) -> None:
    tuning = plan.tuning
    _check_policies(
        machine, say, tuning.epp, tuning.reasons["epp"],
        "energy_performance_preference", "energy_performance_available_preferences",
    )  # fmt: skip


def test_idle_states(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = plan.tuning.disabled_idle_states
    if not wanted:
        say.note(plan.tuning.reasons["idle_states"])
        return
    out = machine.run(
        "cd %s && for f in cpu[0-9]*/cpuidle/state[0-9]*/disable; do [ -e $f ] || continue; "
        'echo "$f $(cat $f)"; done',
        machine.root + CPU,
    )
    states = dict(line.split() for line in out.splitlines())
    deep = {f: v for f, v in states.items() if int(f.split("/")[2].removeprefix("state")) in wanted}
    if not deep:
        raise Wrong(f"idle states {wanted} disabled", "no such states", CPU, APPLY)
    for file, disabled in deep.items():
        expect("1", disabled, f"{CPU}/{file}", APPLY)
    say.found(f"{len(deep)} of {len(states)} states disabled")


def test_is_applied_at_each_boot(machine: Machine, say: Say) -> None:
    unit = machine.units[TUNING]
    expect("enabled", unit["UnitFileState"], f"systemctl is-enabled {TUNING}")
    if unit["ConditionResult"] == "no" and unit["ActiveState"] == "inactive":
        say.note("n/a: /sys is read-only here (a container)")
        return
    see = f"journalctl -u {TUNING}"
    expect("success", unit["Result"], f"systemctl show {TUNING}", see)
    expect("active", unit["ActiveState"], f"systemctl show {TUNING}", see)


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
