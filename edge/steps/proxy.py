"""Proxy: the chat proxy in an environment of its own, installed without a network.

Changes: /opt/edge-llm/proxy/releases/<release>/; the `current` link moves in the gate.
Undo: `rm -r /opt/edge-llm/proxy`.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import artifact, release
from edge.ready import Ready


@deploy("Proxy")
def proxy(ready: Ready) -> None:
    """Send the proxy and its wheels, install them beside the one that runs."""
    plan, archive = ready.plan, ready.artifacts.proxy
    artifact.send(
        name="Send",
        source=archive.path if archive else None,
        path=release.incoming("proxy", plan.proxy.release_id),
        sha256=archive.sha256 if archive else "",
        label=f"proxy {plan.proxy.release_id}",
    )
    release.proxy(name="Install", release_id=plan.proxy.release_id, needed=archive is not None)
