"""From an inventory's data to plans: shared by deploy.py, `edge plan` and the verification.

Imports no pyinfra. What a plan needs from the controller (the model's header, which engines there
are) is gathered here, so that `edge.solver` stays pure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from edge.artifacts import (
    ArtifactError,
    Cache,
    EnginePin,
    Progress,
    SilentProgress,
    cached_engine,
    candidates,
    fetch_model,
    parse_source,
    proxy_release_id,
)
from edge.fleet import CHECKOUT, FleetHost
from edge.hardware import PROXY_PYTHONS
from edge.keys import ApiKey, KeysError, parse
from edge.model_info import KNOWN_MODELS, ModelInfo
from edge.plan import HostPlan
from edge.settings import Problem, Settings, check_host
from edge.solver import Offer, host_python, solve
from edge.survey import Survey

PROXY_SOURCE = CHECKOUT / "files" / "chat_proxy"
PROXY_LOCK = PROXY_SOURCE / "requirements.lock"


class SettingsInvalid(Exception):  # noqa: N818  (says what happened)
    """Settings of at least one host are wrong. The text lists every problem of every host."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(describe(problems))


def describe(problems: Sequence[Problem]) -> str:
    """Problems as one message for a person."""
    hosts = len({problem.host for problem in problems})
    head = (
        f"{len(problems)} {_plural('problem', len(problems))} in {hosts} "
        f"{_plural('host', hosts)}; nothing was changed:"
    )
    return "\n".join([head, *(f"  {problem}" for problem in problems)])


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def check_fleet(hosts: Iterable[FleetHost]) -> dict[str, Settings]:
    """The settings of every host, by name.

    Raises:
        SettingsInvalid: with every problem of every host.
    """
    good: dict[str, Settings] = {}
    problems: list[Problem] = []
    for host in hosts:
        settings, found = check_host(host.name, host.data)
        problems += found
        if settings is not None:
            good[host.name] = settings
            try:
                keys_for(settings)
            except KeysError as error:
                problems.append(_key_problem(host.name, settings, error))
    if problems:
        raise SettingsInvalid(problems)
    return good


def _key_problem(host: str, settings: Settings, error: KeysError) -> Problem:
    return Problem(host, "api_keys_file", settings.api_keys_file, str(error))


def keys_for(settings: Settings) -> tuple[ApiKey, ...] | None:
    """The keys that may ask, from the controller's file; None where none are asked for.

    Raises:
        KeysError: the file cannot be read, or not used.
    """
    told = settings.api_keys_file
    if not told:
        return None
    try:
        text = (CHECKOUT / Path(told).expanduser()).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KeysError(
            f"there is no such file: run `edge key new NAME --file {told}` (a relative path counts "
            "from the folder of deploy.py)"
        ) from None
    except UnicodeDecodeError:
        raise KeysError("it is no text in UTF-8; `edge key new` writes such files") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of a user that is not there
        raise KeysError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse(text, told)


def model_info_for(settings: Settings, cache: Cache, progress: Progress | None = None) -> ModelInfo:
    """What a plan needs to know of the model: known by its digest, or read from the file.

    A model that is not known is fetched into the controller's cache, if it is not there.

    Raises:
        ArtifactError: it cannot be had.
    """
    source = parse_source(settings.model_source)
    if known := KNOWN_MODELS.get(settings.model_sha256):
        return replace(known, file_name=source.file_name)
    return fetch_model(
        source,
        settings.model_sha256 or None,
        cache=cache,
        hub_endpoint=settings.hub_endpoint or None,
        progress=progress or SilentProgress(),
    ).info


def plan_host(
    host: str,
    groups: Sequence[str],
    settings: Settings,
    survey: Survey,
    cache: Cache,
    progress: Progress | None = None,
) -> HostPlan | list[Problem]:
    """Solve one host with what this controller has.

    Returns:
        The plan, or the problems that stand in its way (one at least). Raises nothing that is
        about one host only, so that the others can go on.
    """
    try:
        model = model_info_for(settings, cache, progress)
    except ArtifactError as error:
        return [Problem(host, "model_source", settings.model_source, str(error))]
    try:
        keys = keys_for(settings)
    except KeysError as error:
        return [_key_problem(host, settings, error)]
    engines, preferred = _engines(settings, survey, cache)
    offer = Offer(engines, _proxy_release(survey), keys, time.time())
    plan, problems = solve(host, groups, settings, survey, model, offer)
    if plan is None:
        return problems
    if why := preferred.get(plan.engine.release_id):
        reason = f"{plan.reasons['engine.release_id']}; {why}"
        plan = replace(plan, reasons={**plan.reasons, "engine.release_id": reason})
    return plan


def _engines(
    settings: Settings, survey: Survey, cache: Cache
) -> tuple[list[EnginePin], dict[str, str]]:
    """The engines in order of preference, and by release why one was put before its turn.

    `auto` keeps to what the host runs, then to what is in the cache: a controller without internet
    falls back to a build, and the next plan must not ask for the release again.
    """
    pins = list(candidates(settings.engine_source, survey.arch))
    if settings.engine_source != "auto":
        return pins, {}
    why: dict[str, str] = {}
    for pin in pins:
        if pin.release_id == survey.installed.engine_current:
            why[pin.release_id] = "installed already"
        elif cached_engine(pin, cache) is not None:
            why[pin.release_id] = "in the cache already"
    rank = {"installed already": 0, "in the cache already": 1, "": 2}
    ordered = sorted(pins, key=lambda pin: rank[why.get(pin.release_id, "")])
    return ordered, why if ordered != pins else {}


def _proxy_release(survey: Survey) -> str:
    python = host_python(survey)
    if python not in PROXY_PYTHONS:
        return ""  # the solver refuses such a host
    return proxy_release_id(PROXY_SOURCE, PROXY_LOCK, python, survey.arch)
