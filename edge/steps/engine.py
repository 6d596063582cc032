"""Engine: llama.cpp's llama-server, one immutable release a build.

Changes: /opt/edge-llm/engine/releases/<release>/; the `current` link moves in the gate.
Undo: `rm -r /opt/edge-llm/engine`.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import artifact, release
from edge.ready import Ready


@deploy("Engine")
def engine(ready: Ready) -> None:
    """Send the engine, try it on the host, keep it beside the one that runs."""
    plan, archive = ready.plan, ready.artifacts.engine
    artifact.send(
        name="Send",
        source=archive.path if archive else None,
        path=release.incoming("engine", plan.engine.release_id),
        sha256=archive.sha256 if archive else "",
        label=f"engine {plan.engine.release_id}",
    )
    release.engine(
        name="Unpack and try",
        release_id=plan.engine.release_id,
        flags=["--model", "--alias", *plan.engine.flags],
        needed=archive is not None,
    )
