"""Services: units, slice, environment, and the agent that switches to them.

Changes: edgellm.slice, llama-server.service, chat-proxy.socket and .service under
/etc/systemd/system, /etc/edge-llm/proxy.env, /opt/edge-llm/bin/edge-host. Nothing is restarted
here: the gate does it, when what runs differs from what should.
Undo: `systemctl disable --now` the units, remove the files.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.operations import managed
from edge.prepare import Ready
from edge.render import differing


@deploy("Services")
def services(ready: Ready) -> None:
    """Write the files that differ."""
    wanted = (ready.rendered.agent, *ready.rendered.services)
    managed.files(name="Files", write=differing(wanted, ready.survey.installed.files))
