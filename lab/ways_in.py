"""How people get to what a lab serves: what `make demo` ends with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from lab.paths import Lab
from lab.record import SSH_USER, Fleet


def ways_in(lab: Lab, fleet: Fleet, environment: Mapping[str, str] = os.environ) -> str:
    """What to type for a lab's first host and for all of it, each line with its word before it.

    `environment` says how this lab was asked for; commands that need it again begin with it.
    """
    host = fleet.hosts[0]
    key = shlex.quote(str(lab.api_key))
    asked = [name for name in ("EDGE_LAB_NAME", "EDGE_LAB_STATE") if environment.get(name)]
    chosen = "".join(f"{name}={shlex.quote(environment[name])} " for name in asked)
    body = """-d '{"prompt": "Write a haiku about small computers."}'"""
    rows = {
        "page": f"http://{host.address}:8000",
        "key": f"cat {key}    (the page asks for it)",
        "curl": f'curl -N http://{host.address}:8000/chat -H "Authorization: Bearer $(cat {key})"'
        f" \\\n             {body}",
        "shell": f"{chosen}.venv/bin/edge lab ssh {host.name}",
        "yours": f"for an inventory of your own: {login(lab)}",
        "verify": f"{chosen}.venv/bin/edge verify inventory/lab.py",
        "stop": f"{chosen}make demo-down",
    }
    return "\n".join(f"  {word:8} {what}" for word, what in rows.items())


def login(lab: Lab) -> str:
    """How anybody but `edge lab ssh` logs in to a lab's hosts."""
    return f"user {SSH_USER}, key {lab.ssh_key}, known_hosts {lab.known_hosts}"
