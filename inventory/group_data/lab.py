"""Settings of the lab's hosts (inventory/lab.py): the small model that the lab's own hub serves."""

from lab.fleet import load
from lab.paths import Lab

__all__ = ["_sudo", "api_keys_file", "proxy_listen"]

# The login is no root; the lab's sudo asks for no password.
_sudo = True

# The lab is for looking at, from this machine: no other reaches its hosts.
proxy_listen = "0.0.0.0"  # noqa: S104

# `edge lab up` made the key. In the clear it is in the file beside this one, `api-key`.
lab = Lab.from_environment()
api_keys_file = str(lab.api_keys)

# pyinfra reads this file for every inventory, so it must also load where no lab is up.
if fleet := load(lab):
    __all__ += ["hub_endpoint", "model_sha256", "model_source"]
    hub_endpoint = fleet.hub.endpoint
    model_source = f"hub:{fleet.hub.repo}@{fleet.hub.revision}/{fleet.hub.file}"
    model_sha256 = fleet.hub.sha256
    if fleet.tier == "vm":
        __all__ += ["gate_timeout_s", "reboot_timeout_s", "threads"]
        # Emulated processors share this machine's, and threads that wait for one another by
        # spinning get nowhere on fewer processors than threads: on two, one thread gives 30
        # tokens/s and three give 1.4.
        threads = 1
        # To load takes a minute there, and as many as there are hosts load at once.
        gate_timeout_s = 900
        reboot_timeout_s = 900
