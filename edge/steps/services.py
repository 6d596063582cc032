"""Services: units, slice, environment, and the agent that switches to them.

Changes: edgellm.slice, llama-server.service, chat-proxy.socket and .service under
/etc/systemd/system, /etc/edge-llm/proxy.env, /etc/edge-llm/api-keys where keys are asked for,
/opt/edge-llm/bin/edge-host; removes drop-ins of these units, which would change what was planned;
closes folders of ours that others than root can write to. Nothing is restarted here: the gate does
it, when what runs differs from what should. The proxy reads changed keys by itself.
Undo: `systemctl disable --now` the units, remove the files.
"""

from __future__ import annotations

from pyinfra import host, logger
from pyinfra.api import deploy

from edge.differences import stale_files
from edge.operations import managed
from edge.ready import Ready
from edge.render import differing


@deploy("Services")
def services(ready: Ready) -> None:
    """Write the files that differ, remove what overrides them."""
    wanted = (ready.rendered.agent, *ready.rendered.services)
    for path in ready.survey.installed.overrides:
        logger.warning(f"{host.print_prefix}{path} overrides what was planned: it is removed")
    stale = stale_files(ready.rendered, ready.survey)
    folders = ready.survey.installed.open_folders
    for path in folders:
        logger.warning(f"{host.print_prefix}{path} was open to others than root: it is closed")
    managed.files(
        name="Files",
        write=differing(wanted, ready.survey.installed.files),
        remove=(*ready.survey.installed.overrides, *stale),
        then=[managed.closed(path) for path in folders],
    )
