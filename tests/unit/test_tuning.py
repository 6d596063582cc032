"""Tuning: what applies on which machine, and why the rest does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.settings import Settings
from edge.tuning import TuningPlan, plan_tuning
from tests.unit.recorded import survey_of

MEMORY = ("cgroup_enable=memory", "cgroup_memory=1")


def tuning(name: str, /, survey: dict[str, Any] | None = None, **settings: Any) -> TuningPlan:
    return plan_tuning(Settings(**settings), replace(survey_of(name), **(survey or {})))


@pytest.mark.parametrize(
    ("name", "governor", "epp", "states", "parameters"),
    [
        (
            "n100", "performance", "performance", (2, 3, 4),
            ("intel_idle.max_cstate=1", "processor.max_cstate=1"),
        ),
        ("ryzen-3500u", "performance", "", (2,), ("processor.max_cstate=1",)),
        ("ryzen-7840hs", "performance", "performance", (2, 3), ("processor.max_cstate=1",)),
        ("pi5-4gb", "performance", "", (), MEMORY),
        ("pi5-8gb", "performance", "", (), MEMORY),  # on, and stays asked for
        (
            "xeon-2-sockets", "performance", "", (2, 3, 4),
            ("intel_idle.max_cstate=1", "processor.max_cstate=1"),
        ),
        ("vm-no-cpufreq", "", "", (), ()),
    ],
)  # fmt: skip
def test_machines(
    name: str, governor: str, epp: str, states: tuple[int, ...], parameters: tuple[str, ...]
) -> None:
    plan = tuning(name)
    assert plan.governor == governor
    assert plan.epp == epp
    assert plan.disabled_idle_states == states
    assert plan.kernel_parameters == parameters
    assert all(plan.reasons.values())


def test_deeper_states_are_named_with_their_latency() -> None:
    assert tuning("n100").reasons["idle_states"] == (
        "deeper than 1: C6 (195 us), C8 (260 us), C10 (660 us)"
    )


def test_a_deeper_limit_leaves_more_states() -> None:
    plan = tuning("n100", max_cstate=2)
    assert plan.disabled_idle_states == (3, 4)
    assert plan.kernel_parameters == ("intel_idle.max_cstate=2", "processor.max_cstate=2")


def test_keep_changes_nothing() -> None:
    plan = tuning("n100", governor="keep", max_cstate="keep")
    assert (plan.governor, plan.epp) == ("", "")
    assert plan.disabled_idle_states == plan.kernel_parameters == ()
    assert plan.reasons["governor"].startswith("kept")
    assert plan.reasons["idle_states"].startswith("kept")


def test_keep_still_turns_the_memory_cgroup_of_a_pi_on() -> None:
    assert tuning("pi5-4gb", governor="keep", max_cstate="keep").kernel_parameters == MEMORY


def test_a_pi_whose_kernel_has_the_memory_cgroup_needs_no_parameter() -> None:
    on = {"cgroup_controllers": frozenset({"cpu", "memory"})}
    assert tuning("pi5-4gb", survey=on).kernel_parameters == ()


def test_why_there_is_no_governor() -> None:
    assert "offers no cpufreq" in tuning("vm-no-cpufreq").reasons["governor"]
    policy = replace(survey_of("pi5-4gb").cpufreq[0], governors=("powersave", "userspace"))
    plan = tuning("pi5-4gb", survey={"cpufreq": (policy,)})
    assert plan.governor == ""
    assert plan.reasons["governor"] == "n/a: cpufreq-dt does not offer performance"


def test_a_rival_is_reported_or_taken_over() -> None:
    reported = tuning("ryzen-3500u")
    assert reported.disable_rivals == ()
    assert any("take_over_power_daemons = True" in text for text in reported.warnings)
    taken = tuning("ryzen-3500u", take_over_power_daemons=True)
    assert taken.disable_rivals == ("power-profiles-daemon.service",)
    assert taken.warnings == ()


def test_a_rival_is_no_matter_where_the_governor_is_kept() -> None:
    plan = tuning("xeon-2-sockets", governor="keep", take_over_power_daemons=True)
    assert plan.disable_rivals == ()
    assert plan.warnings == ()
