"""Model: the GGUF file, sent once to each host, verified there.

Changes: /opt/edge-llm/models/<digest>/. A new model is a new folder; the old one is pruned later.
Undo: `rm -r /opt/edge-llm/models`.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import artifact
from edge.ready import Ready


@deploy("Model")
def model(ready: Ready) -> None:
    """Send the model, if the host lacks it."""
    artifact.send(
        name="Send",
        source=ready.artifacts.model,
        path=ready.plan.model.path,
        sha256=ready.plan.model.sha256,
        label="model",
    )
