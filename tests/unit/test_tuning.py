"""Tuning: what applies on which machine, and why the rest does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.knobs import KNOBS
from edge.rivals import RIVALS, STOPPED
from edge.settings import Settings
from edge.survey import CpufreqPolicy, KernelFile, Swap, Watchdog
from edge.survey_script import SCRIPT
from edge.tuning import TuningPlan, plan_tuning
from tests.unit.recorded import survey_of

MEMORY = ("cgroup_enable=memory", "cgroup_memory=1")


def tuning(name: str, /, survey: dict[str, Any] | None = None, **settings: Any) -> TuningPlan:
    return plan_tuning(Settings(**settings), replace(survey_of(name), **(survey or {})))


def values(plan: TuningPlan) -> dict[str, str]:
    return {knob.key: knob.value for knob in plan.knobs if knob.value}


FAST = {"governor": "performance"}


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("n100", {**FAST, "epp": "performance", "energy_bias": "0"}),
        ("ryzen-3500u", FAST),
        ("ryzen-7840hs", {**FAST, "epp": "performance", "platform_profile": "performance"}),
        ("pi5-4gb", FAST),
        ("xeon-2-sockets", FAST),
        ("vm-no-cpufreq", {}),
    ],
)
def test_machines(name: str, knobs: dict[str, str]) -> None:
    plan = tuning(name)
    assert values(plan) == knobs
    assert [knob.key for knob in plan.knobs] == [row.key for row in KNOBS]
    assert all(plan.reasons.values())


def test_keep_sets_nothing_at_all() -> None:
    plan = tuning("n100", governor="keep", max_cstate="keep")
    assert values(plan) == {}
    assert not plan.idle
    assert plan.disabled_idle_states == plan.kernel_parameters == ()
    assert plan.reasons["governor"] == "kept as the host has it (governor = keep)"
    assert plan.reasons["idle_states"].startswith("kept")


def test_keep_still_turns_the_memory_cgroup_of_a_pi_on() -> None:
    assert tuning("pi5-4gb", governor="keep", max_cstate="keep").kernel_parameters == MEMORY
    assert tuning("pi5-8gb").kernel_parameters == MEMORY  # on, and stays asked for


def test_a_pi_whose_kernel_has_the_memory_cgroup_needs_no_parameter() -> None:
    on = {"cgroup_controllers": frozenset({"cpu", "memory"})}
    assert tuning("pi5-4gb", survey=on).kernel_parameters == ()


def test_why_a_knob_is_not_set() -> None:
    assert "offers no cpufreq" in tuning("vm-no-cpufreq").reasons["governor"]
    policy = replace(survey_of("pi5-4gb").cpufreq[0], governors=("powersave", "userspace"))
    plan = tuning("pi5-4gb", survey={"cpufreq": (policy,)})
    assert values(plan) == {}
    assert plan.reasons["governor"] == "n/a: cpufreq-dt does not offer performance"
    assert plan.reasons["energy_bias"] == "n/a: the CPU has no energy bias (Intel's have one)"
    quiet = {"/sys/firmware/acpi/platform_profile": KernelFile("quiet", ("quiet", "cool"))}
    plan = tuning("n100", survey={"knob_files": quiet})
    assert plan.reasons["platform_profile"] == "n/a: the kernel does not offer performance"


def test_each_policy_that_offers_it_is_counted() -> None:
    """RK3588: two clusters on one driver, another on one that offers less."""
    policies = (
        CpufreqPolicy(0, "cpufreq-dt", "ondemand", ("ondemand", "performance"), "", ()),
        CpufreqPolicy(4, "scmi", "ondemand", ("ondemand", "powersave"), "", ()),
        CpufreqPolicy(6, "cpufreq-dt", "ondemand", ("ondemand", "performance"), "", ()),
    )
    plan = tuning("pi5-4gb", survey={"cpufreq": policies})
    assert values(plan) == FAST
    assert plan.reasons["governor"] == (
        "cpufreq-dt, scmi on 2 of 3 places; the others do not offer it"
    )


def test_huge_pages_are_only_set_where_they_are_asked_for() -> None:
    assert "huge_pages" not in values(tuning("n100"))
    plan = tuning("n100", transparent_huge_pages="madvise")
    assert values(plan)["huge_pages"] == "madvise"
    assert plan.huge_pages_asked
    assert not tuning("n100", transparent_huge_pages="always").huge_pages_asked
    none = tuning("pi5-4gb", transparent_huge_pages="madvise")
    assert none.reasons["huge_pages"] == "n/a: this kernel has no transparent huge pages"
    assert not none.huge_pages_asked


def test_a_rival_is_reported_or_taken_over() -> None:
    reported = tuning("ryzen-3500u")
    assert reported.disable_rivals == reported.stop_rivals == ()
    assert reported.warnings == (
        "power-profiles-daemon.service (active, enabled) may set energy preference and platform "
        "profile back; mask it there, or set take_over_power_daemons = True",
    )
    taken = tuning("ryzen-3500u", take_over_power_daemons=True)
    assert taken.disable_rivals == ("power-profiles-daemon.service",)
    assert taken.warnings == ()
    # The same list whether or not one runs: the configuration must not change once it is stopped.
    assert taken.stop_rivals == STOPPED
    stopped = tuning("ryzen-3500u", survey={"rivals": {}}, take_over_power_daemons=True)
    assert stopped.stop_rivals == STOPPED
    assert stopped.disable_rivals == ()


def test_what_runs_once_at_boot_is_no_daemon() -> None:
    plan = tuning("n100", survey={"rivals": {"raspi-config.service": "active, generated"}})
    assert plan.warnings == ()


def test_a_rival_is_no_matter_where_nothing_is_set() -> None:
    plan = tuning("xeon-2-sockets", governor="keep", take_over_power_daemons=True)
    assert plan.disable_rivals == plan.stop_rivals == ()
    assert plan.warnings == ()


def test_the_survey_asks_for_every_daemon_of_the_table() -> None:
    asked = SCRIPT.partition("say rivals\n")[2].partition("2>/dev/null")[0].split()
    assert {rival.unit for rival in STOPPED} == {
        word for word in asked if word.endswith(".service")
    }
    assert {rival.stop for rival in RIVALS} == {"mask", "disable", ""}


def test_zram() -> None:
    assert tuning("n100").reasons["zram"] == "none (zram_swap_percent = 0)"
    plan = tuning("n100", zram_swap_percent=50)
    assert plan.zram_percent == 50
    assert plan.reasons["zram"] == "50% of 7715 MiB (zram_swap_percent)"
    ours = {"swaps": (Swap("/dev/zram1", 4 << 30, ours=True),)}
    assert tuning("n100", survey=ours, zram_swap_percent=50).zram_percent == 50
    # Raspberry Pi OS has made one itself.
    theirs = tuning("pi5-8gb", zram_swap_percent=50)
    assert theirs.zram_percent == 0
    assert theirs.reasons["zram"] == "n/a: the host has zram already (/dev/zram0), which stays"
    none = tuning("ryzen-3500u", zram_swap_percent=50)
    assert none.reasons["zram"].startswith("n/a: this kernel has no zram")


def test_the_hardware_watchdog() -> None:
    assert tuning("n100").watchdog_s == 0
    plan = tuning("n100", hardware_watchdog_s=60)
    assert (plan.watchdog_s, plan.reasons["watchdog"]) == (60, "iTCO_wdt (hardware_watchdog_s)")
    pi = tuning("pi5-8gb", hardware_watchdog_s=60)
    assert pi.watchdog_s == 15
    assert pi.reasons["watchdog"] == "Broadcom BCM2835 Watchdog timer, which takes 15 s at most"
    assert tuning("pi5-8gb", hardware_watchdog_s=12).watchdog_s == 12
    short = {"watchdogs": (Watchdog("watchdog0", "it87 WDT", 30),)}
    assert tuning("n100", survey=short, hardware_watchdog_s=60).watchdog_s == 30
    none = tuning("ryzen-3500u", hardware_watchdog_s=60)
    assert none.watchdog_s == 0
    assert none.reasons["watchdog"].startswith("n/a: no /dev/watchdog")


def test_noatime_is_for_the_file_systems_that_hold_edge_llm() -> None:
    assert tuning("pi5-8gb").noatime == ()
    assert tuning("pi5-8gb", noatime=True).noatime == ("/",)
    disks = survey_of("n100").disks
    apart = {**disks, "/var/lib/edge-llm": replace(disks["/var/lib/edge-llm"], mount="/var")}
    assert tuning("n100", survey={"disks": apart}, noatime=True).noatime == ("/", "/var")
