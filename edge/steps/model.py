"""Model: the GGUF file, sent once to each host, verified there.

Changes: /opt/edge-llm/models/<digest>/. A new model is a new folder; the old one is pruned later.
Undo: `rm -r /opt/edge-llm/models`.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import artifact
from edge.plan import HostPlan
from edge.prepare import Ready
from edge.survey import Survey


def needed(plan: HostPlan, survey: Survey) -> bool:
    """Whether the model is not on the host, or was touched since it was verified there."""
    return not any(
        stored.path == plan.model.path and stored.verified_sha256 == plan.model.sha256
        for stored in survey.installed.models
    )


@deploy("Model")
def model(ready: Ready) -> None:
    """Send the model, if the host lacks it."""
    artifact.send(
        name="Send",
        source=ready.artifacts.model,
        path=ready.plan.model.path,
        sha256=ready.plan.model.sha256,
        label="model",
        needed=needed(ready.plan, ready.survey),
    )
