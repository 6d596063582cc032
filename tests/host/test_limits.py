"""Limits as the kernel enforces them: from the control groups that the processes are in."""

from __future__ import annotations

import re

from checks import Say, Wrong, expect
from machine import ENGINE, PROXY, SLICE, Machine, Process

from edge.plan import HostPlan
from edge.survey import MIB, OVERRIDE
from edge.tuning import MEMORY_CGROUP_TOKENS

UNLIMITED = 1 << 62  # version 1 writes "no limit" as the largest number of pages
RUN_TIME = (
    "a value changed at run time: systemctl daemon-reload, systemctl restart UNIT; the next "
    "rollout heals what a file on the host says otherwise"
)


def _limit(text: str) -> int | None:
    return None if text == "max" or int(text) >= UNLIMITED else int(text)


def _mib(value: int | None) -> str:
    return "no limit" if value is None else f"{value} bytes ({value / MIB:.1f} MiB)"


def _waits_for_boot(plan: HostPlan) -> bool:
    return any(token in plan.reboot.waiting for token in MEMORY_CGROUP_TOKENS)


def _expect_memory(machine: Machine, process: Process, v1: str, v2: str, wanted: int) -> int:
    group = machine.cgroup(process, "memory")
    file = group.file(v1, v2)
    found = _limit(machine.read(file))
    page = int(machine.run("getconf PAGE_SIZE"))  # the kernel rounds down to whole pages
    if found is None or found // page != wanted // page:
        remedy = RUN_TIME.replace("UNIT", process.unit)
        raise Wrong(_mib(wanted), _mib(found), f"{file} ({process.unit})", remedy)
    return found


def test_memory_controller(machine: Machine, plan: HostPlan, say: Say) -> None:
    """Raspberry Pi OS has none until it is asked for at boot, and then ignores every limit."""
    status, out, _ = machine.try_run("cat /sys/fs/cgroup/cgroup.controllers")
    if status:
        rows = [line.split() for line in machine.read("/proc/cgroups").splitlines()[1:]]
        out = " ".join(name for name, _, _, enabled in rows if enabled == "1")
    if "memory" in out.split():
        return
    if _waits_for_boot(plan):
        say.note("there is none until the next boot: memory limits are not enforced yet")
        return
    raise Wrong(
        "memory among the kernel's controllers", out, "/sys/fs/cgroup/cgroup.controllers",
        f"boot with {' '.join(MEMORY_CGROUP_TOKENS)}",
    )  # fmt: skip


def test_engine_memory_max(machine: Machine, plan: HostPlan, say: Say) -> None:
    if _waits_for_boot(plan):
        say.note("takes effect at the next boot")
        return
    found = _expect_memory(
        machine, machine.engine, "memory.limit_in_bytes", "memory.max", plan.limits.memory_max
    )
    say.found(_mib(found))


def test_engine_memory_high(machine: Machine, plan: HostPlan, say: Say) -> None:
    if _waits_for_boot(plan):
        say.note("takes effect at the next boot")
        return
    if machine.cgroup(machine.engine, "memory").version == 1:
        say.note("n/a: control groups of version 1 know no soft limit of this kind")
        return
    found = _expect_memory(machine, machine.engine, "", "memory.high", plan.limits.memory_high)
    say.found(_mib(found))


def test_engine_memory_in_use(machine: Machine, plan: HostPlan, say: Say) -> None:
    if _waits_for_boot(plan):
        say.note("takes effect at the next boot")
        return
    group = machine.cgroup(machine.engine, "memory")
    used = int(machine.read(group.file("memory.usage_in_bytes", "memory.current")))
    stat = dict(
        line.split() for line in machine.read(f"{group.directory}/memory.stat").splitlines()
    )
    own = int(stat["total_rss" if group.version == 1 else "anon"])
    if own > plan.limits.memory_high:
        # Page cache can be given back; what is the process's own above the soft limit throttles it.
        raise Wrong(
            f"at most {_mib(plan.limits.memory_high)} of its own",
            _mib(own),
            f"{group.directory}/memory.stat",
            "raise memory_max_mib, or lower slots or context_per_slot",
        )
    if group.version == 2:
        rows = machine.read(f"{group.directory}/memory.events").splitlines()
        if (killed := int(dict(line.split() for line in rows).get("oom_kill", 0))) > 0:
            say.note(f"ran out of memory {killed} times since it was started")
    say.found(
        f"{used / MIB:.0f} of {plan.limits.memory_max / MIB:.0f} MiB, {own / MIB:.0f} its own"
    )


def test_proxy_memory_max(machine: Machine, plan: HostPlan, say: Say) -> None:
    if _waits_for_boot(plan):
        say.note("takes effect at the next boot")
        return
    found = _expect_memory(
        machine, machine.proxy, "memory.limit_in_bytes", "memory.max",
        plan.limits.proxy_memory_max,
    )  # fmt: skip
    say.found(_mib(found))


def test_engine_cpu_quota(machine: Machine, plan: HostPlan, say: Say) -> None:
    group = machine.cgroup(machine.engine, "cpu")
    if group.version == 1:
        where = f"{group.directory}/cpu.cfs_quota_us"
        quota = machine.read(where)
        period = machine.read(f"{group.directory}/cpu.cfs_period_us")
    else:
        where = f"{group.directory}/cpu.max"
        quota, period = machine.read(where).split()
    unlimited = quota in ("-1", "max")
    found = "no limit" if unlimited else f"{round(int(quota) * 100 / int(period))}% of one core"
    remedy = RUN_TIME.replace("UNIT", ENGINE)
    expect(f"{plan.limits.cpu_quota_percent}% of one core", found, where, remedy)
    say.found(found)


def test_cpu_weight(machine: Machine, plan: HostPlan, say: Say) -> None:
    group = machine.cgroup(machine.engine, "cpu").up_to(SLICE)
    wanted = plan.limits.cpu_weight
    where = group.file("cpu.shares", "cpu.weight")
    # systemd's own conversion for version 1, whose default is 1024 where the weight's is 100.
    value = min(max(wanted * 1024 // 100, 2), 262_144) if group.version == 1 else wanted
    expect(value, int(machine.read(where)), f"{where} (weight {wanted})")
    say.found(wanted)


def test_io_weight(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = plan.limits.io_weight
    try:
        group = machine.cgroup(machine.engine, "io" if _unified(machine) else "blkio").up_to(SLICE)
    except Wrong:
        say.note("n/a: this kernel has no controller for block devices")
        return
    for file, value in _io_weights(wanted):
        where = f"{group.directory}/{file}"
        if machine.exists(where):
            # "default 50", then lines for single devices
            found = machine.read(where).split("\n")[0].removeprefix("default ")
            expect(str(value), found, f"{where} (weight {wanted})")
            say.found(f"{file} {found}")
            return
    say.note("n/a: this kernel's block devices take no weights")


def _io_weights(weight: int) -> list[tuple[str, int]]:
    """The kernel's files for a weight, and systemd's conversion for each of them."""
    old = min(max(weight * 5, 10), 1000)
    return [
        ("io.weight", weight),
        ("io.bfq.weight", _bfq(weight)),
        ("blkio.bfq.weight", _bfq(old)),
        ("blkio.weight", old),
    ]


def _bfq(weight: int) -> int:
    """systemd's BFQ_WEIGHT: bfq knows 1 to 1000, with the same default of 100."""
    return weight if weight <= 100 else 100 + (weight - 100) * 900 // 9900


def _unified(machine: Machine) -> bool:
    return machine.exists("/sys/fs/cgroup/cgroup.controllers")


def _seconds(timespan: str) -> float | None:
    """systemd's words for a time: "750ms", "1s 500ms"; None for infinity."""
    if timespan == "infinity":
        return None
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    parts = re.findall(r"([\d.]+)\s*(us|ms|min|s|h)", timespan)
    return round(sum(float(number) * units[unit] for number, unit in parts), 6)


def test_systemd_would_set_the_same(machine: Machine, plan: HostPlan) -> None:
    """What systemd has loaded acts at the next start, whatever the kernel enforces now."""
    limits, units = plan.limits, machine.units
    quota = units[ENGINE]["CPUQuotaPerSecUSec"]
    rows = [
        (ENGINE, "MemoryMax", str(limits.memory_max), units[ENGINE]["MemoryMax"]),
        (ENGINE, "MemoryHigh", str(limits.memory_high), units[ENGINE]["MemoryHigh"]),
        (ENGINE, "MemorySwapMax", "0", units[ENGINE]["MemorySwapMax"]),
        (ENGINE, "CPUQuota", str(limits.cpu_quota_percent / 100), str(_seconds(quota))),
        (PROXY, "MemoryMax", str(limits.proxy_memory_max), units[PROXY]["MemoryMax"]),
        (SLICE, "CPUWeight", str(limits.cpu_weight), units[SLICE]["CPUWeight"]),
        (SLICE, "IOWeight", str(limits.io_weight), units[SLICE]["IOWeight"]),
        (SLICE, "MemoryMax", "infinity", units[SLICE]["MemoryMax"]),
    ]
    if wrong := [row for row in rows if row[2] != row[3]]:
        raise Wrong(
            ", ".join(f"{unit} {name}={wanted}" for unit, name, wanted, _ in wrong),
            ", ".join(f"{name}={found}" for _, name, _, found in wrong),
            "systemctl show",
        )


def test_no_overrides(machine: Machine, say: Say) -> None:
    """No file but ours has a say in our units, now or after the next daemon-reload."""
    loaded = {
        path for unit in machine.units.values() for path in unit.get("DropInPaths", "").split()
    }
    folders = {name for unit in machine.units for name in _drop_in_names(unit)}
    places = " ".join(
        f"{top}/{name}.d/*.conf"
        for name in sorted(folders)
        for top in (
            "/etc/systemd/system",
            "/etc/systemd/system.control",
            "/run/systemd/system",
            "/run/systemd/system.control",
            "/usr/local/lib/systemd/system",
        )
    )
    there = machine.run(f"for f in {places}; do if [ -f $f ]; then echo $f; fi; done")
    # A drop-in for all units of a kind ("service.d") is the distribution's, or the operator's.
    general = {
        path for path in loaded if path.split("/")[-2] in ("service.d", "slice.d", "socket.d")
    }
    if foreign := sorted({*loaded, *there.split()} - general):
        left = [path for path in foreign if not OVERRIDE.match(path)]
        raise Wrong(
            "no drop-ins for edge-llm's units",
            ", ".join(foreign),
            "systemctl cat UNIT",
            f"remove {', '.join(left)}: the rollout leaves what is there" if left else None,
        )
    if general:
        say.note(
            "drop-ins for every unit apply here, too, and the rollout leaves them: "
            + ", ".join(sorted(general))
        )


def _drop_in_names(unit: str) -> list[str]:
    """A unit's name, and what it begins with: "a-b.service", "a-.service"."""
    stem, _, kind = unit.rpartition(".")
    words = stem.split("-")
    return [unit, *(f"{'-'.join(words[:n])}-.{kind}" for n in range(1, len(words)))]
