"""What the operating system's tuning comes to on a host, and why something does not apply. Pure.

The tables are beside it: `edge.knobs` (what takes a word), `edge.rivals` (who else sets it),
`edge.idle` (idle states and their kernel parameters).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.idle import IdleLimit, off, plan_idle
from edge.knobs import KnobPlan, plan_knobs
from edge.rivals import BY_UNIT, STOPPED, Rival
from edge.settings import Settings
from edge.survey import Survey

MEMORY_CGROUP_TOKENS = ("cgroup_enable=memory", "cgroup_memory=1")
PI_WATCHDOG_S = 15
"""The counter of a Raspberry Pi's watchdog holds 16 s. Before Linux 6.8 its driver refuses more,
and systemd goes on without any watchdog then (github.com/systemd/systemd/issues/27427)."""


@dataclass(frozen=True)
class TuningPlan:
    """Tuning of one host. An empty value means "not applicable" or "kept"; `reasons` says which."""

    knobs: tuple[KnobPlan, ...]
    """All of them, also those that are left alone."""
    idle: IdleLimit
    disabled_idle_states: tuple[int, ...]
    """What that comes to now, by index. States that a kernel parameter took away are not there."""
    noatime: tuple[str, ...]
    """Mount points."""
    zram_percent: int
    watchdog_s: int
    stop_rivals: tuple[Rival, ...]
    """Every daemon that is stopped where there is one: the same whether or not it runs now."""
    disable_rivals: tuple[str, ...]
    """Those of them that are to be stopped now."""
    kernel_parameters: tuple[str, ...]
    """What is asked for; `edge.boot` gets it onto the command line."""
    reasons: dict[str, str]
    warnings: tuple[str, ...]

    def knob(self, key: str) -> KnobPlan:
        """A knob by its key in the table."""
        return next(knob for knob in self.knobs if knob.key == key)

    @property
    def huge_pages_asked(self) -> bool:
        """Whether the engine must ask for huge pages to get them."""
        return self.knob("huge_pages").value == "madvise"


def plan_tuning(settings: Settings, survey: Survey) -> TuningPlan:
    """Decide everything that the tuning step and its kernel parameters come to."""
    warnings: list[str] = []
    knobs = plan_knobs(settings, survey)
    reasons = {knob.key: knob.reason for knob in knobs}
    idle = plan_idle(settings, survey)
    reasons["idle_states"] = idle.reason
    noatime, reasons["noatime"] = _noatime(settings, survey)
    zram, reasons["zram"] = _zram(settings, survey)
    watchdog, reasons["watchdog"] = _watchdog(settings, survey)
    memory, why = _memory_cgroup(survey)
    parameters = (*idle.parameters, *memory)
    reasons["kernel_parameters"] = "; ".join(filter(None, [idle.parameter_reason, why]))
    sets = any(knob.value and knob.key != "huge_pages" for knob in knobs)
    stop = STOPPED if sets and settings.take_over_power_daemons else ()
    found = tuple(sorted(unit for unit in survey.rivals if _stays(unit))) if sets else ()
    if not stop:
        warnings += [_rival(unit, survey.rivals[unit]) for unit in found]
    return TuningPlan(
        knobs=knobs,
        idle=idle.limit,
        disabled_idle_states=tuple(sorted({state.index for state in off(idle.limit, survey)})),
        noatime=noatime,
        zram_percent=zram,
        watchdog_s=watchdog,
        stop_rivals=stop,
        disable_rivals=found if stop else (),
        kernel_parameters=parameters,
        reasons=reasons,
        warnings=tuple(warnings),
    )


def _stays(unit: str) -> bool:
    """Whether a rival is a daemon that sets things at any time, not once at boot."""
    return unit in BY_UNIT and bool(BY_UNIT[unit].stop)


def _rival(unit: str, state: str) -> str:
    rival = BY_UNIT[unit]
    return (
        f"{unit} ({state}) may set {rival.sets} back; {rival.stop} it there, or set "
        "take_over_power_daemons = True"
    )


def _noatime(settings: Settings, survey: Survey) -> tuple[tuple[str, ...], str]:
    if not settings.noatime:
        return (), "kept as the host has it (noatime = False)"
    mounts = dict.fromkeys(disk.mount for disk in survey.disks.values())
    return tuple(mounts), "as asked (noatime)"


def _zram(settings: Settings, survey: Survey) -> tuple[int, str]:
    percent = settings.zram_swap_percent
    if not percent:
        return 0, "none (zram_swap_percent = 0)"
    others = [swap.device for swap in survey.swaps if "/zram" in swap.device and not swap.ours]
    if others:
        return 0, f"n/a: the host has zram already ({', '.join(others)}), which stays"
    if not survey.zram:
        return 0, "n/a: this kernel has no zram (Ubuntu: package linux-modules-extra-…)"
    return percent, f"{percent}% of {survey.memory_total // 1024**2} MiB (zram_swap_percent)"


def _watchdog(settings: Settings, survey: Survey) -> tuple[int, str]:
    asked = settings.hardware_watchdog_s
    if not asked:
        return 0, "left as the host has it (hardware_watchdog_s = 0)"
    if not survey.watchdogs:
        return 0, (
            "n/a: no /dev/watchdog; the driver may have to be loaded (iTCO_wdt on Intel, "
            "sp5100_tco on AMD), and Ubuntu lists these as not to be loaded by themselves"
        )
    device = survey.watchdogs[0]
    most = device.max_timeout_s or asked
    if survey.is_raspberry_pi:
        most = min(most, PI_WATCHDOG_S)
    if asked > most:
        return most, f"{device.identity}, which takes {most} s at most"
    return asked, f"{device.identity} (hardware_watchdog_s)"


def _memory_cgroup(survey: Survey) -> tuple[tuple[str, ...], str]:
    if not survey.is_raspberry_pi:
        return (), ""
    # The running kernel's line counts too: a token that somebody took out of cmdline.txt since
    # the last boot would take the memory limit away at the next one.
    present = {*survey.cmdline_txt, *survey.cmdline.split()}
    asked = not present.isdisjoint(MEMORY_CGROUP_TOKENS)
    if asked or "memory" not in survey.cgroup_controllers:
        return MEMORY_CGROUP_TOKENS, "Raspberry Pi OS has no memory cgroup without them"
    return (), "memory cgroup is on already"
