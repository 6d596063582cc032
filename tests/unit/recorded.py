"""Recorded surveys of real kinds of machines, and the Qwen model that plans are solved for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge.artifacts.engine_pins import candidates
from edge.keys import ApiKey
from edge.model_info import KNOWN_MODELS, ModelInfo
from edge.plan import HostPlan
from edge.settings import QWEN_SHA256, Problem, Settings
from edge.solver import Offer, solve
from edge.survey import Survey
from edge.survey_script import parse

SURVEYS = Path(__file__).parent / "surveys"
NAMES = sorted(path.stem for path in SURVEYS.glob("*.txt"))
NOW = 1_800_000_000.0
"""January 2027: the time by which keys expire."""
QWEN: ModelInfo = KNOWN_MODELS[QWEN_SHA256]


def text_of(name: str) -> str:
    return (SURVEYS / f"{name}.txt").read_text(encoding="utf-8")


def survey_of(name: str) -> Survey:
    return parse(text_of(name))


def offer_for(
    survey: Survey, source: Any = "auto", keys: tuple[ApiKey, ...] | None = None
) -> Offer:
    # Debian 12's glibc: where the field notes' engine was built.
    pins = candidates(source, survey.arch, controller_glibc=(2, 36))
    return Offer(pins, "p-000000000000", keys, NOW)


def attempt(
    name_or_survey: str | Survey,
    *groups: str,
    model: ModelInfo = QWEN,
    keys: tuple[ApiKey, ...] | None = None,
    **settings: Any,
) -> tuple[HostPlan | None, list[Problem]]:
    survey = survey_of(name_or_survey) if isinstance(name_or_survey, str) else name_or_survey
    asked = Settings(**settings)
    offer = offer_for(survey, asked.engine_source, keys)
    return solve("box", groups, asked, survey, model, offer)


def planned(name_or_survey: str | Survey, *groups: str, **settings: Any) -> HostPlan:
    plan, problems = attempt(name_or_survey, *groups, **settings)
    assert plan is not None, problems
    return plan


def refused(name_or_survey: str | Survey, *groups: str, **settings: Any) -> str:
    """The one problem, as the operator reads it."""
    plan, problems = attempt(name_or_survey, *groups, **settings)
    assert plan is None
    assert len(problems) == 1, problems
    return str(problems[0])
