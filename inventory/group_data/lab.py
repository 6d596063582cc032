"""Settings of the lab's hosts (inventory/lab.py): the small model that the lab's own hub serves."""

from lab.fleet import load
from lab.paths import Lab

__all__ = ["_sudo", "hub_endpoint", "model_sha256", "model_source", "proxy_listen"]

# The login is no root; the lab's sudo asks for no password.
_sudo = True

# The lab is for looking at: its hosts are reachable from this machine only.
proxy_listen = "0.0.0.0"  # noqa: S104

# pyinfra reads this file for every inventory, so it must also load where no lab is up.
if fleet := load(Lab.from_environment()):
    hub_endpoint = fleet.hub.endpoint
    model_source = f"hub:{fleet.hub.repo}@{fleet.hub.revision}/{fleet.hub.file}"
    model_sha256 = fleet.hub.sha256
