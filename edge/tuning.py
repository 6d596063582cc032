"""What the operating system's tuning comes to on a host, and why something does not apply. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from edge.settings import Settings
from edge.survey import Survey

MEMORY_CGROUP_TOKENS = ("cgroup_enable=memory", "cgroup_memory=1")
# The kernel parameters that limit C-states, by the idle driver that is in use.
IDLE_PARAMETERS = {
    "intel_idle": ("intel_idle.max_cstate={}", "processor.max_cstate={}"),
    "acpi_idle": ("processor.max_cstate={}",),
}


@dataclass(frozen=True)
class TuningPlan:
    """Tuning of one host. An empty value means "not applicable" or "kept"; `reasons` says which."""

    governor: str
    epp: str
    disabled_idle_states: tuple[int, ...]
    kernel_parameters: tuple[str, ...]
    """What is asked for; `edge.boot` gets it onto the command line."""
    disable_rivals: tuple[str, ...]
    reasons: dict[str, str]
    warnings: tuple[str, ...]


def plan_tuning(settings: Settings, survey: Survey) -> TuningPlan:
    """Decide governor, energy preference, idle states and kernel parameters."""
    reasons: dict[str, str] = {}
    warnings: list[str] = []
    governor, reasons["governor"] = _governor(settings, survey)
    epp, reasons["epp"] = _epp(governor, survey)
    states, reasons["idle_states"] = _idle_states(settings, survey)
    parameters, reasons["kernel_parameters"] = _parameters(settings, survey)
    rivals = tuple(sorted(survey.rivals)) if governor else ()
    if rivals and not settings.take_over_power_daemons:
        warnings.append(
            f"{', '.join(rivals)} may set the governor back; disable it there, or set "
            "take_over_power_daemons = True"
        )
    return TuningPlan(
        governor=governor,
        epp=epp,
        disabled_idle_states=states,
        kernel_parameters=parameters,
        disable_rivals=rivals if settings.take_over_power_daemons else (),
        reasons=reasons,
        warnings=tuple(warnings),
    )


def _governor(settings: Settings, survey: Survey) -> tuple[str, str]:
    if settings.governor == "keep":
        return "", "kept as the host has it (governor = keep)"
    if not survey.cpufreq:
        return "", "n/a: this kernel offers no cpufreq (virtual machine, or set by the firmware)"
    offering = [policy for policy in survey.cpufreq if settings.governor in policy.governors]
    if not offering:
        return "", f"n/a: {survey.cpufreq[0].driver} does not offer {settings.governor}"
    return settings.governor, f"{offering[0].driver} on {len(offering)} policies"


def _epp(governor: str, survey: Survey) -> tuple[str, str]:
    if not governor:
        return "", "n/a: the governor is not set"
    if any("performance" in policy.epps for policy in survey.cpufreq):
        return "performance", "the driver takes an energy-performance preference"
    return "", "n/a: the driver takes no energy-performance preference"


def _idle_states(settings: Settings, survey: Survey) -> tuple[tuple[int, ...], str]:
    if settings.max_cstate == "keep":
        return (), "kept as the host has them (max_cstate = keep)"
    if not survey.idle_states:
        return (), f"n/a: no idle states to choose from (idle driver: {survey.idle_driver})"
    # The kernel's own parameters count by index too: 0 is polling, 1 the first real state.
    deeper = [state for state in survey.idle_states if state.index > settings.max_cstate]
    if not deeper:
        return (), f"n/a: {survey.idle_driver} has no state deeper than {settings.max_cstate}"
    names = ", ".join(f"{state.name} ({state.latency_us} us)" for state in deeper)
    return tuple(state.index for state in deeper), f"deeper than {settings.max_cstate}: {names}"


def _parameters(settings: Settings, survey: Survey) -> tuple[tuple[str, ...], str]:
    parameters: list[str] = []
    why: list[str] = []
    templates = IDLE_PARAMETERS.get(survey.idle_driver, ())
    if settings.max_cstate == "keep":
        why.append("C-states are kept")
    elif templates:
        parameters += [template.format(settings.max_cstate) for template in templates]
        why.append(f"idle driver {survey.idle_driver}")
    else:
        why.append(f"C-states n/a: idle driver {survey.idle_driver} has no parameter for it")
    if survey.is_raspberry_pi:
        # The running kernel's line counts too: a token that somebody took out of cmdline.txt since
        # the last boot would take the memory limit away at the next one.
        present = {*survey.cmdline_txt, *survey.cmdline.split()}
        asked = not present.isdisjoint(MEMORY_CGROUP_TOKENS)
        if asked or "memory" not in survey.cgroup_controllers:
            parameters += MEMORY_CGROUP_TOKENS
            why.append("Raspberry Pi OS has no memory cgroup without them")
        else:
            why.append("memory cgroup is on already")
    return tuple(parameters), "; ".join(why)
