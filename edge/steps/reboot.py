"""Reboot: what acts only from the next boot, where `reboot = "if_needed"`.

Changes: the host is restarted, once, after its gate and never while another host of the fleet is.
Undo: nothing to undo.
"""

from __future__ import annotations

from pathlib import Path

from pyinfra import host, logger
from pyinfra.api import deploy
from pyinfra.connectors.local import LocalConnector

from edge.operations.reboot import reboot as reboot_host
from edge.ready import Ready
from edge.reboot import refusal
from edge.render import desired_state

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@deploy("Reboot")
def reboot(ready: Ready) -> None:
    """Say who will be rebooted before anything is changed; reboot in turn, then."""
    plan = ready.plan.reboot
    if not plan.due:
        return
    local = isinstance(host.connector, LocalConnector)
    refused = refusal(ready.survey.boot_id, _own_boot_id(), local=local)
    will = f"will not be rebooted: {refused}" if refused else "will be rebooted once it serves"
    logger.info(f"{host.print_prefix}{will}; {plan.says}")
    reboot_host(
        name="One host at a time",
        plan=plan,
        desired=desired_state(ready.plan, ready.rendered),
        refused=refused,
    )


def _own_boot_id() -> str:
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
