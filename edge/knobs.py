"""The table of what is tuned by writing one of several words to a file of the kernel's. Pure.

Plan, `tuning.conf`, `edge plan` and the verification follow from these rows: a knob more is a row
more (and, where the survey does not read its file yet, a path in edge/survey.sh).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edge.settings import Settings
from edge.survey import KernelFile, Survey

CPU = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class Knob:
    """One kind of file. A row of `KNOBS`."""

    key: str
    title: str
    path: str
    """A shell pattern: one file a policy or CPU."""
    choices: str
    """Name of the file beside it that lists what may be written; "-": nothing does."""
    setting: str
    """The setting that it follows."""
    words: Mapping[str, str]
    """Value of the setting to what is written; a value that is not in here leaves it alone."""
    absent: str
    """Why a host may have no such file."""


KNOBS = (
    # The governor comes first: with it at "performance" the active drivers of Intel and AMD refuse
    # every other preference, and take the former one back only after the former governor.
    Knob(
        "governor", "governor", f"{CPU}/cpufreq/policy[0-9]*/scaling_governor",
        "scaling_available_governors", "governor", {"performance": "performance"},
        "this kernel offers no cpufreq (virtual machine, or set by the firmware)",
    ),
    Knob(
        "epp", "energy preference", f"{CPU}/cpufreq/policy[0-9]*/energy_performance_preference",
        "energy_performance_available_preferences", "governor", {"performance": "performance"},
        "the driver takes no energy-performance preference",
    ),
    # Intel's older register of the same meaning, from 0 (performance) to 15 (power saving). Where
    # there are both, the processor reads both.
    Knob(
        "energy_bias", "energy bias", f"{CPU}/cpu[0-9]*/power/energy_perf_bias",
        "-", "governor", {"performance": "0"},
        "the CPU has no energy bias (Intel's have one)",
    ),
    # The firmware's own limits of power and heat.
    Knob(
        "platform_profile", "platform profile", "/sys/firmware/acpi/platform_profile",
        "platform_profile_choices", "governor", {"performance": "performance"},
        "the firmware offers no platform profiles",
    ),
    Knob(
        "huge_pages", "huge pages", "/sys/kernel/mm/transparent_hugepage/enabled",
        "enabled", "transparent_huge_pages", {"madvise": "madvise", "always": "always"},
        "this kernel has no transparent huge pages",
    ),
)  # fmt: skip

# Drivers that take the preference from the governor: at "performance" it is what they make of it.
PREFERENCE_FOLLOWS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


@dataclass(frozen=True)
class KnobPlan:
    """What a knob is set to on a host."""

    key: str
    title: str
    value: str
    """Empty: left as the host has it, or not applicable."""
    path: str
    choices: str
    reason: str


def plan_knobs(settings: Settings, survey: Survey) -> tuple[KnobPlan, ...]:
    """Every row of the table for one host."""
    return tuple(_plan(knob, settings, survey) for knob in KNOBS)


def matching(path: str, survey: Survey) -> dict[str, KernelFile]:
    """The host's files that a knob's pattern matches."""
    return {name: file for name, file in survey.kernel_files.items() if fnmatchcase(name, path)}


def unsettled(plan: KnobPlan, survey: Survey) -> list[str]:
    """The files of a knob that are not as planned, though they could be."""
    return [
        name
        for name, file in matching(plan.path, survey).items()
        if plan.value and file.offers(plan.value) and not _holds(plan, file)
    ]


def _holds(plan: KnobPlan, file: KernelFile) -> bool:
    follows = plan.key == "epp" and file.driver in PREFERENCE_FOLLOWS
    return file.value == plan.value or (follows and file.governor == plan.value)


def _plan(knob: Knob, settings: Settings, survey: Survey) -> KnobPlan:
    value, reason = _value(knob, settings, survey)
    return KnobPlan(knob.key, knob.title, value, knob.path, knob.choices, reason)


def _value(knob: Knob, settings: Settings, survey: Survey) -> tuple[str, str]:
    asked = getattr(settings, knob.setting)
    word = knob.words.get(asked, "")
    if not word:
        return "", f"kept as the host has it ({knob.setting} = {asked})"
    files = matching(knob.path, survey).values()
    if not files:
        return "", f"n/a: {knob.absent}"
    drivers = ", ".join(dict.fromkeys(file.driver for file in files if file.driver))
    offering = [file for file in files if file.offers(word)]
    if not offering:
        return "", f"n/a: {drivers or 'the kernel'} does not offer {word}"
    if len(offering) < len(files):
        where = f"{len(offering)} of {len(files)} places; the others do not offer it"
    else:
        where = f"{len(files)} {'policies' if drivers else 'CPUs'}" if len(files) > 1 else ""
    return word, " on ".join(filter(None, [drivers or f"{knob.setting} = {asked}", where]))
