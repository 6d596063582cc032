"""Idle states: which stay, and the kernel parameters that say so from the next boot. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge.settings import Settings
from edge.survey import IdleState, Survey

# The kernel parameters that limit C-states, by the idle driver that is in use. `{table}` counts
# rows of intel_idle's own table, `{index}` the states that ACPI lists, which is how both number
# what they show in sysfs. processor.max_cstate holds where intel_idle does not come up.
IDLE_PARAMETERS = {
    "intel_idle": ("intel_idle.max_cstate={table}", "processor.max_cstate={index}"),
    "acpi_idle": ("processor.max_cstate={index}",),
}


@dataclass(frozen=True)
class IdleLimit:
    """Which idle states stay: both bounds hold. None: no bound of that kind."""

    max_index: int | None
    max_latency_us: int | None

    def __bool__(self) -> bool:
        return self.max_index is not None or self.max_latency_us is not None

    def allows(self, state: IdleState, states: Sequence[IdleState]) -> bool:
        """Whether a state of a CPU stays; `states` are that CPU's.

        The shallowest state that halts the CPU stays in any case: without one, an idle CPU would
        run at full power and take the heat budget of the others.
        """
        polls = any(each.index == 0 and each.name == "POLL" for each in states)
        if state.index <= (1 if polls else 0):
            return True
        return (self.max_index is None or state.index <= self.max_index) and (
            self.max_latency_us is None or state.latency_us <= self.max_latency_us
        )


@dataclass(frozen=True)
class IdlePlan:
    """Idle states of one host."""

    limit: IdleLimit
    """Nothing, where there is nothing to limit."""
    parameters: tuple[str, ...]
    reason: str
    parameter_reason: str


def plan_idle(settings: Settings, survey: Survey) -> IdlePlan:
    """Decide which states stay and what the kernel is told at the next boot."""
    limit = IdleLimit(
        None if settings.max_cstate == "keep" else settings.max_cstate,
        None if settings.max_exit_latency_us == "any" else settings.max_exit_latency_us,
    )
    if not limit:
        kept = "kept as the host has them (max_cstate = keep)"
        return IdlePlan(limit, (), kept, "C-states are kept")
    parameters, why = _parameters(limit, survey)
    driver = survey.idle_driver
    if not survey.idle_states:
        none = f"n/a: no idle states to choose from (idle driver: {driver})"
        return IdlePlan(IdleLimit(None, None), parameters, none, why)
    deeper = off(limit, survey)
    bounds = " and ".join(
        [f"deeper than {limit.max_index}"] * (limit.max_index is not None)
        + [f"slower than {limit.max_latency_us} us"] * (limit.max_latency_us is not None)
    )
    if not deeper:
        return IdlePlan(limit, parameters, f"n/a: {driver} has no state {bounds}", why)
    names = dict.fromkeys(f"{state.name} ({state.latency_us} us)" for state in deeper)
    either = bounds.replace(" and ", " or ")
    return IdlePlan(limit, parameters, f"{either}: {', '.join(names)}", why)


def off(limit: IdleLimit, survey: Survey) -> list[IdleState]:
    """The states, as they are now on each CPU, that must be disabled."""
    found = []
    for cpu in dict.fromkeys(state.cpu for state in survey.idle_states):
        states = [state for state in survey.idle_states if state.cpu == cpu]
        found += [state for state in states if not limit.allows(state, states)]
    return found


def _parameters(limit: IdleLimit, survey: Survey) -> tuple[tuple[str, ...], str]:
    driver = survey.idle_driver
    templates = IDLE_PARAMETERS.get(driver, ())
    if not templates:
        return (), f"C-states n/a: idle driver {driver} has no parameter for it"
    index, why = _deepest(limit, survey)
    if index is None:
        return (), f"C-states: {why}"
    table = index + _rows_not_shown(survey)
    return tuple(each.format(table=table, index=index) for each in templates), (
        f"idle driver {driver}" + (f"; {why}" if why else "")
    )


def _deepest(limit: IdleLimit, survey: Survey) -> tuple[int | None, str]:
    """The deepest state that stays, by index, and what a parameter cannot say about it.

    The answer must be the same after the boot that took the deeper states away: what the host had
    before is known from its own record (`Survey.known_idle_states`).
    """
    states = _all_states(survey)
    stay = [state.index for state in states if limit.allows(state, states)]
    by_index = limit.max_index
    if limit.max_latency_us is None:
        return by_index, ""
    slow = [s for s in states if s.latency_us > limit.max_latency_us and s.index not in stay]
    if slow:
        deepest = max(stay, default=1)
        why = f"{limit.max_latency_us} us allow state {deepest} at most"
        if any(state.index < deepest for state in slow):
            why += "; a slower one below it is disabled at each boot instead"
        return deepest, why
    if not survey.known_idle_states and (running := running_limit(survey)) is not None:
        # No record, and whatever is deeper is out of sight: what is in force is kept.
        return (running if by_index is None else min(running, by_index)), "as the kernel runs now"
    return by_index, f"no state is slower than {limit.max_latency_us} us"


def _all_states(survey: Survey) -> list[IdleState]:
    """The states of every CPU, with those that the kernel's present parameters leave out."""
    known = survey.known_idle_states if survey.known_idle_driver == survey.idle_driver else ()
    seen = {state.index for state in survey.idle_states}
    return [*survey.idle_states, *(state for state in known if state.index not in seen)]


def running_limit(survey: Survey) -> int | None:
    """The limit that the running kernel was booted with, as an index of sysfs; None without."""
    module = "intel_idle" if survey.idle_driver == "intel_idle" else "processor"
    found = re.findall(rf"(?:^|\s){module}\.max_cstate=(\d+)(?=\s|$)", survey.cmdline)
    if not found:
        return None
    return max(int(found[-1]) - (_rows_not_shown(survey) if module == "intel_idle" else 0), 1)


def _rows_not_shown(survey: Survey) -> int:
    """How many rows of intel_idle's table come before the first state that it shows.

    Alder Lake (an N100 too) has C1 and C1E in its table, of which it uses C1E alone
    (drivers/idle/intel_idle.c, CPUIDLE_FLAG_UNUSABLE). max_cstate=1 ends the table before C1E there
    and leaves nothing but polling.
    """
    names = {state.index: state.name for state in _all_states(survey)}
    if survey.idle_driver == "intel_idle" and set(names) == {0}:
        return 1  # somebody did that already
    return 1 if names.get(1) == "C1E" else 0
