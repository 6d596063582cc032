"""Everything that the steps need to know of one host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge.artifacts import Artifact
from edge.plan import HostPlan
from edge.render import Rendered
from edge.survey import Survey


@dataclass(frozen=True)
class Artifacts:
    """What is sent to a host; None where the host has it already."""

    model: Path | None = None
    engine: Artifact | None = None
    proxy: Artifact | None = None


@dataclass(frozen=True)
class Ready:
    """Everything the steps need to know of one host."""

    plan: HostPlan
    survey: Survey
    rendered: Rendered
    artifacts: Artifacts
