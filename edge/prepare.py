"""Before anything is changed: settings checked, every host surveyed and planned, artifacts ready.

deploy.py runs once for every host, side by side. The first to arrive does this for all of them, so
that one message can list every problem of the whole fleet; the others wait for it.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gevent.lock import RLock
from gevent.pool import Pool
from pyinfra import logger
from pyinfra.api import Host, State
from pyinfra.api.arguments import pop_global_arguments
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import get_fact
from pyinfra.context import ctx_host, ctx_state
from pyinfra_cli.exceptions import CliError

from edge import obstacles
from edge.artifacts import (
    ArtifactError,
    Cache,
    EnginePin,
    LineProgress,
    cached_engine,
    candidates,
    fetch_engine,
    fetch_model,
    fetch_proxy,
    parse_source,
)
from edge.differences import engine_missing, model_missing, proxy_missing
from edge.facts import HostSurvey
from edge.fleet import FleetHost
from edge.operations.remote import RemoteError, connector_arguments, fail, run
from edge.plan import HostPlan
from edge.planning import (
    PROXY_LOCK,
    PROXY_SOURCE,
    SettingsInvalid,
    check_fleet,
    describe,
    plan_host,
)
from edge.ready import Artifacts, Ready
from edge.render import render
from edge.settings import Problem, Settings
from edge.summary import Row, outcome_of, print_table
from edge.survey import Survey
from edge.survey_script import SurveyError, parse

SURVEYS_AT_ONCE = 32


class DeployError(CliError, PyinfraError):  # type: ignore[misc]  # pyinfra_cli has no types
    """The whole run ends; nothing was changed on any host. Shown as a message, not as a crash."""


@dataclass
class _Fleet:
    ready: dict[str, Ready] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)


_lock = RLock()
_fleets: dict[int, _Fleet] = {}


def prepared() -> Ready | None:
    """What the steps need for the host that deploy.py runs for; None where it has failed already.

    Raises:
        DeployError: a setting of any host is wrong, a plan of any host cannot be solved, or an
            artifact cannot be had. One message with everything that is wrong.
    """
    state: State = ctx_state.get()
    host: Host = ctx_host.get()
    with _lock:
        fleet = _fleets.get(id(state))
        if fleet is None:
            fleet = _fleets[id(state)] = _Fleet()
            try:
                _prepare(state, fleet)
            except ArtifactError as error:
                raise DeployError(f"nothing was changed: {error}") from None
    return fleet.ready.get(host.name)


def _prepare(state: State, fleet: _Fleet) -> None:
    chosen = [host for host in state.inventory if state.is_host_in_limit(host)]
    described = {
        host.name: FleetHost(host.name, tuple(host.groups), host.data.dict()) for host in chosen
    }
    try:
        settings = check_fleet(described.values())
    except SettingsInvalid as error:
        raise DeployError(str(error)) from None
    atexit.register(_print_table, state, chosen, fleet)

    cache, progress = Cache(), LineProgress()
    surveys = _survey(state, fleet)
    _fail(state, fleet, {name: obstacles.of_host(survey) for name, survey in surveys.items()})
    surveys = {name: survey for name, survey in surveys.items() if name not in fleet.trouble}
    plans: dict[str, HostPlan] = {}
    problems: list[Problem] = []
    for name, survey in surveys.items():
        for _attempt in range(2):
            plan = plan_host(name, described[name].groups, settings[name], survey, cache, progress)
            if isinstance(plan, list) or _engine_is_to_be_had(plan, settings[name], cache, survey):
                break
        if isinstance(plan, list):
            problems += plan
        else:
            plans[name] = plan
    if problems:
        raise DeployError(describe(problems) + _without(problems, plans))
    _fail(
        state,
        fleet,
        {name: obstacles.of_plan(plan, surveys[name]) for name, plan in plans.items()},
    )
    for name, plan in plans.items():
        if name not in fleet.trouble:
            artifacts = _artifacts(plan, settings[name], surveys[name], cache, progress)
            fleet.ready[name] = Ready(plan, surveys[name], render(plan), artifacts)


def _without(problems: Iterable[Problem], plans: Mapping[str, HostPlan]) -> str:
    """How to go on without the hosts that have problems, if any other is left."""
    if not plans:
        return ""
    names = " ".join(f"--exclude {name}" for name in sorted({each.host for each in problems}))
    return f"\nMend it, or go on without: {names}"


def _fail(state: State, fleet: _Fleet, found: Mapping[str, list[str]]) -> None:
    """Fail the hosts that something stands in the way of; the others go on."""
    failed = set()
    for name, problems in found.items():
        if problems:
            host = state.inventory.get_host(name)
            fail(host, "not provisioned, nothing was changed:\n- " + "\n- ".join(problems))
            fleet.trouble[name] = "; ".join(problems)
            failed.add(host)
    _fail_hosts(state, failed)


def _fail_hosts(state: State, hosts: set[Host]) -> None:
    try:
        state.fail_hosts(hosts)
    except PyinfraError as error:
        raise DeployError(str(error)) from None


def _survey(state: State, fleet: _Fleet) -> dict[str, Survey]:
    """Survey all active hosts at once. A host that cannot be read fails; the others go on."""

    def read(host: Host) -> tuple[str, str | None]:
        with ctx_state.use(state), ctx_host.use(host):
            return host.name, get_fact(state, host, HostSurvey, apply_failed_hosts=False)

    surveys = {}
    pool = Pool(SURVEYS_AT_ONCE)
    hosts = sorted(state.active_hosts, key=lambda host: host.name)
    for name, text in pool.imap_unordered(read, hosts):
        try:
            surveys[name] = parse(text or "")
        except SurveyError as error:
            fleet.trouble[name] = str(error) if text else ""
    failed = {host for host in hosts if host.name in fleet.trouble}
    for host in failed:
        if not fleet.trouble[host.name]:
            fleet.trouble[host.name] = f"it could not be surveyed: {_why_mute(state, host)}"
        logger.error(f"{host.print_prefix}{fleet.trouble[host.name]}")
    _fail_hosts(state, failed)
    return {name: surveys[name] for name in sorted(surveys)}


def _why_mute(state: State, host: Host) -> str:
    """What the simplest of commands ends with on a host whose survey failed."""
    given, _keys = pop_global_arguments(state, host, {})
    try:
        output = run(host, "true", connector_arguments(given))
    except RemoteError as error:
        return str(error)
    said = " ".join(output.stderr.split()) or "its shell gave no answer to the survey's script"
    if not output.ok and "sudo" in said:
        said += "; log in as root, or let this user use sudo without a password (NOPASSWD)"
    return said


def _engine_is_to_be_had(plan: HostPlan, settings: Settings, cache: Cache, survey: Survey) -> bool:
    """Fetch the plan's engine. With `auto`, a release that cannot be had becomes a build.

    Returns:
        False when the plan must be solved again, because another engine is in the cache now.

    Raises:
        ArtifactError: no engine can be had.
    """
    if not engine_missing(plan, survey):
        return True
    pin = _engine_pin(plan, settings)
    base_url = settings.engine_release_base_url or None
    try:
        fetch_engine(pin, cache=cache, progress=LineProgress(), release_base_url=base_url)
    except ArtifactError as error:
        builds = candidates(settings.engine_source, plan.arch)[1:]
        if pin.kind == "build" or not builds:
            raise
        logger.warning(f"The engine's release cannot be had, building it instead: {error}")
        fetch_engine(builds[0], cache=cache, progress=LineProgress())
        return False
    return True


def _engine_pin(plan: HostPlan, settings: Settings) -> EnginePin:
    pins = candidates(settings.engine_source, plan.arch)
    return next(pin for pin in pins if pin.release_id == plan.engine.release_id)


def _artifacts(
    plan: HostPlan, settings: Settings, survey: Survey, cache: Cache, progress: LineProgress
) -> Artifacts:
    """Everything that this host lacks, in the controller's cache. The engine is there already."""
    path = archive = bundle = None
    if model_missing(plan, survey):
        path = fetch_model(
            parse_source(settings.model_source),
            plan.model.sha256,
            cache=cache,
            hub_endpoint=settings.hub_endpoint or None,
            progress=progress,
        ).path
    if engine_missing(plan, survey):
        archive = cached_engine(_engine_pin(plan, settings), cache)
    if proxy_missing(plan, survey):
        bundle = fetch_proxy(
            PROXY_SOURCE,
            PROXY_LOCK,
            plan.proxy.python,
            plan.arch,
            cache=cache,
            progress=progress,
        )
    return Artifacts(path, archive, bundle)


def _print_table(state: State, chosen: list[Host], fleet: _Fleet) -> None:
    """At the very end of the process: after pyinfra's own results, whatever happened."""
    if not state.is_executing and not state.failed_hosts:
        return  # a dry run, or a run that was not confirmed
    rows = []
    for host in chosen:
        ready, outcome = fleet.ready.get(host.name), outcome_of(host.name)
        trouble = fleet.trouble.get(host.name, "")
        if host not in state.activated_hosts:
            trouble = "" if outcome else f"not reached: {_address(host)}"
        elif host in state.failed_hosts and outcome is None and not trouble:
            trouble = _failed_operation(state, host)
        rows.append(Row(host.name, _address(host), ready.plan if ready else None, outcome, trouble))
    print_table(rows)


def _failed_operation(state: State, host: Host) -> str:
    """The operation at which a host failed that did not say why itself, and its last words."""
    for hash_, data in state.ops[host].items():
        meta = data.operation_meta
        if meta.is_complete() and meta.did_error():
            name = " ".join(sorted(state.get_op_meta(hash_).names))
            words = [line for line in meta.stderr_lines if line.strip()]
            return f"{name} failed: {words[-1].strip() if words else 'the connection was lost'}"
    return "it failed before the gate (see above)"


def _address(host: Host) -> str:
    data: Mapping[str, Any] = host.data.dict()
    name = "localhost" if host.name == "@local" else host.name
    return str(data.get("ssh_hostname") or name)
