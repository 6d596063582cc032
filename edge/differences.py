"""What differs between a plan and a host as its survey shows it. Pure.

Steps and the preparation ask here, so that what is missing is decided in one place.
"""

from __future__ import annotations

from edge.idle import off
from edge.knobs import unsettled
from edge.plan import HostPlan
from edge.render import API_KEYS, ENABLED_UNITS, Rendered, differing
from edge.survey import Survey


def model_missing(plan: HostPlan, survey: Survey) -> bool:
    """Whether the model is not on the host, or was touched since it was verified there."""
    return not any(
        stored.path == plan.model.path and stored.verified_sha256 == plan.model.sha256
        for stored in survey.installed.models
    )


def engine_missing(plan: HostPlan, survey: Survey) -> bool:
    """Whether the host lacks this release of the engine."""
    return plan.engine.release_id not in survey.installed.engine_releases


def proxy_missing(plan: HostPlan, survey: Survey) -> bool:
    """Whether the host lacks this release of the proxy."""
    return plan.proxy.release_id not in survey.installed.proxy_releases


def tuning_in_effect(plan: HostPlan, survey: Survey) -> bool:
    """Whether what the oneshot sets at each boot is as planned right now."""
    tuning = plan.tuning
    mounted = {disk.mount: disk.access_times for disk in survey.disks.values()}
    return (
        not any(unsettled(knob, survey) for knob in tuning.knobs)
        and all(state.disabled for state in off(tuning.idle, survey))
        and all(mounted[mount] == "noatime" for mount in tuning.noatime)
        and bool(tuning.zram_percent) == any(swap.ours for swap in survey.swaps)
        and not tuning.disable_rivals
    )


def watchdog_in_effect(plan: HostPlan, survey: Survey) -> bool:
    """Whether systemd feeds the hardware watchdog as planned; it must not be asked to where nothing
    is planned."""
    return not plan.tuning.watchdog_s or survey.runtime_watchdog_s == plan.tuning.watchdog_s


def stale_files(rendered: Rendered, survey: Survey) -> tuple[str, ...]:
    """Files of an earlier plan that this one has no use for."""
    wanted = {file.path for file in rendered.services}
    return tuple(
        path for path in (API_KEYS,) if path in survey.installed.files and path not in wanted
    )


def live(plan: HostPlan, rendered: Rendered, survey: Survey) -> bool:
    """Whether the host runs, by its own survey, exactly what the plan wants.

    What runs is read from the processes themselves: a run that died between writing a unit and
    restarting it leaves the difference to be seen.
    """
    here = survey.installed
    manifest = here.manifest or {}
    return (
        not model_missing(plan, survey)
        and not engine_missing(plan, survey)
        and not proxy_missing(plan, survey)
        and not differing((rendered.agent, *rendered.services), here.files)
        and not here.overrides
        and not stale_files(rendered, survey)
        and here.engine_key
        and here.engine_current == plan.engine.release_id
        and here.proxy_current == plan.proxy.release_id
        and manifest.get("digests") == rendered.digests
        and all(
            unit in here.running
            and here.running[unit].digest == digest
            and not here.running[unit].stale
            and not here.running[unit].other_key
            for unit, digest in rendered.digests.items()
        )
        and all(
            here.units.get(unit, {}).get("ActiveState") == "active"
            and here.units[unit].get("UnitFileState") == "enabled"
            and here.units[unit].get("NeedDaemonReload") == "no"
            for unit in ENABLED_UNITS
        )
    )
