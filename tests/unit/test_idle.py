"""Idle states by index and latency, and the kernel parameters: before and after the boot.

How intel_idle counts is in its source (drivers/idle/intel_idle.c, intel_idle_init_cstates_icpu):
rows of its table, also those that it leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.idle import IdlePlan, off, plan_idle
from edge.settings import Settings
from edge.survey import IdleState, Survey
from tests.unit.recorded import survey_of


def planned(survey: Survey, **settings: Any) -> IdlePlan:
    return plan_idle(Settings(**settings), survey)


def indexes(survey: Survey, plan: IdlePlan) -> list[int]:
    return [state.index for state in off(plan.limit, survey)]


@pytest.mark.parametrize(
    ("name", "settings", "disabled", "parameters"),
    [
        # C1E is row 2 of an N100's table: with 1 nothing would be left that halts a CPU.
        ("n100", {}, [2, 3, 4], ("intel_idle.max_cstate=2", "processor.max_cstate=1")),
        ("n100", {"max_cstate": 2}, [3, 4], ("intel_idle.max_cstate=3", "processor.max_cstate=2")),
        ("n100", {"max_cstate": "keep"}, [], ()),
        (
            "n100", {"max_cstate": "keep", "max_exit_latency_us": 200}, [3, 4],
            ("intel_idle.max_cstate=3", "processor.max_cstate=2"),
        ),
        (  # both hold
            "n100", {"max_cstate": 3, "max_exit_latency_us": 200}, [3, 4],
            ("intel_idle.max_cstate=3", "processor.max_cstate=2"),
        ),
        (
            "n100", {"max_cstate": 1, "max_exit_latency_us": 300}, [2, 3, 4],
            ("intel_idle.max_cstate=2", "processor.max_cstate=1"),
        ),
        # C1E takes 2 us to wake up, and stays all the same. 0 would turn the driver off.
        (
            "n100", {"max_cstate": "keep", "max_exit_latency_us": 1}, [2, 3, 4],
            ("intel_idle.max_cstate=2", "processor.max_cstate=1"),
        ),
        ("n100", {"max_cstate": "keep", "max_exit_latency_us": 1000}, [], ()),
        # Here the table's C1 is in use: rows and states are the same.
        (
            "xeon-2-sockets", {}, [2, 3, 4],
            ("intel_idle.max_cstate=1", "processor.max_cstate=1"),
        ),
        ("ryzen-7840hs", {}, [2, 3], ("processor.max_cstate=1",)),
        (
            "ryzen-7840hs", {"max_cstate": "keep", "max_exit_latency_us": 100}, [3],
            ("processor.max_cstate=2",),
        ),
        ("pi5-8gb", {}, [], ()),
    ],
)  # fmt: skip
def test_states_and_parameters(
    name: str, settings: dict[str, Any], disabled: list[int], parameters: tuple[str, ...]
) -> None:
    survey = survey_of(name)
    plan = planned(survey, **settings)
    assert indexes(survey, plan) == disabled
    assert plan.parameters == parameters
    assert plan.reason
    assert plan.parameter_reason


def rebooted(survey: Survey, plan: IdlePlan, *, recorded: bool = True) -> Survey:
    """The host after a rollout and a boot: the kernel has left out the deeper states."""
    gone = indexes(survey, plan) if plan.parameters else []
    return replace(
        survey,
        idle_states=tuple(state for state in survey.idle_states if state.index not in gone),
        known_idle_driver=survey.idle_driver if recorded else "",
        known_idle_states=survey.idle_states if recorded else (),
        cmdline=f"{survey.cmdline} {' '.join(plan.parameters)}",
    )


LIMITS = [
    {"max_cstate": cstate, "max_exit_latency_us": latency}
    for cstate in ("keep", 1, 2, 3, 9)
    for latency in ("any", 1, 50, 200, 300, 1000)
]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["n100", "ryzen-3500u", "ryzen-7840hs", "xeon-2-sockets"])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_the_plan_after_the_boot_asks_for_the_same(
    name: str, limits: dict[str, Any], *, recorded: bool
) -> None:
    before = survey_of(name)
    plan = planned(before, **limits)
    after = rebooted(before, plan, recorded=recorded)
    assert planned(after, **limits).parameters == plan.parameters
    assert planned(after, **limits).limit == plan.limit


@pytest.mark.parametrize("first", LIMITS, ids=str)
def test_another_limit_after_the_boot_is_as_if_it_were_the_first(first: dict[str, Any]) -> None:
    """A raised limit, too: what the kernel left out is known from the record."""
    before = survey_of("n100")
    after = rebooted(before, planned(before, **first))
    for then in LIMITS:
        assert planned(after, **then).parameters == planned(before, **then).parameters, then


def test_a_record_of_another_driver_says_nothing() -> None:
    survey = replace(
        survey_of("ryzen-3500u"),
        known_idle_driver="intel_idle",
        known_idle_states=survey_of("n100").idle_states,
    )
    limits: dict[str, Any] = {"max_cstate": "keep", "max_exit_latency_us": 500}
    assert planned(survey, **limits).parameters == ()


def test_an_n100_that_only_polls_gets_its_state_back() -> None:
    """What intel_idle.max_cstate=1 did to it, as earlier versions of edge-llm asked for."""
    survey = survey_of("n100")
    polls = replace(
        survey,
        idle_states=survey.idle_states[:1],
        cmdline=f"{survey.cmdline} intel_idle.max_cstate=1 processor.max_cstate=1",
    )
    wanted = ("intel_idle.max_cstate=2", "processor.max_cstate=1")
    assert planned(polls).parameters == wanted
    healed = replace(survey, idle_states=survey.idle_states[:2])
    assert planned(healed).parameters == wanted


def test_states_named_by_acpi_are_counted_as_they_are_shown() -> None:
    names = ("POLL", "C1_ACPI", "C2_ACPI", "C3_ACPI")
    states = tuple(IdleState(n, name, n * 50, False) for n, name in enumerate(names))
    survey = replace(survey_of("n100"), idle_states=states)
    assert planned(survey).parameters == ("intel_idle.max_cstate=1", "processor.max_cstate=1")


def test_cpus_that_differ_are_limited_each_by_its_own_states() -> None:
    """big.LITTLE under psci: state 0 is WFI there, and there is no kernel parameter."""
    states = (
        IdleState(0, "WFI", 1, False, 0),
        IdleState(1, "cpu-sleep-little", 350, False, 0),
        IdleState(0, "WFI", 1, False, 4),
        IdleState(1, "cpu-sleep-big", 90, False, 4),
        IdleState(2, "cluster-sleep", 900, False, 4),
    )
    survey = replace(survey_of("pi5-4gb"), idle_driver="psci_idle", idle_states=states)
    plan = planned(survey, max_cstate="keep", max_exit_latency_us=100)
    assert [(s.cpu, s.index) for s in off(plan.limit, survey)] == [(0, 1), (4, 2)]
    assert plan.parameters == ()
    assert "psci_idle has no parameter" in plan.parameter_reason
    plan = planned(survey, max_cstate=1, max_exit_latency_us="any")
    assert [(s.cpu, s.index) for s in off(plan.limit, survey)] == [(4, 2)]


def test_a_slow_state_below_a_quick_one_is_left_to_sysfs() -> None:
    rows = (("POLL", 0), ("C1", 1), ("C2", 400), ("C3", 90))
    states = tuple(IdleState(n, name, us, False) for n, (name, us) in enumerate(rows))
    survey = replace(survey_of("ryzen-3500u"), idle_states=states)
    plan = planned(survey, max_cstate="keep", max_exit_latency_us=100)
    assert indexes(survey, plan) == [2]
    assert plan.parameters == ("processor.max_cstate=3",)
    assert "disabled at each boot instead" in plan.parameter_reason


def test_a_virtual_machine_has_nothing_to_limit() -> None:
    states = (IdleState(0, "POLL", 0, False), IdleState(1, "haltpoll", 1, False))
    plan = planned(replace(survey_of("n100"), idle_driver="haltpoll", idle_states=states))
    assert plan.parameters == ()
    assert plan.reason == "n/a: haltpoll has no state deeper than 1"
    none = planned(replace(survey_of("n100"), idle_driver="none", idle_states=()))
    assert none.reason == "n/a: no idle states to choose from (idle driver: none)"


def test_reasons_name_the_states_with_their_latency() -> None:
    survey = survey_of("n100")
    assert planned(survey).reason == "deeper than 1: C6 (195 us), C8 (260 us), C10 (660 us)"
    assert planned(survey, max_cstate=3, max_exit_latency_us=200).reason == (
        "deeper than 3 or slower than 200 us: C8 (260 us), C10 (660 us)"
    )
    plan = planned(survey, max_cstate=3, max_exit_latency_us=200)
    assert plan.parameter_reason == "idle driver intel_idle; 200 us allow state 2 at most"
