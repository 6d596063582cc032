"""Preflight: what the steps after it need.

Changes: packages that are missing (python3, libgomp1) and the system user edge-llm.
Undo: `userdel edge-llm`; the packages stay, others may need them.
"""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import StringCommand, deploy, operation

from edge.obstacles import missing
from edge.ready import Ready


@deploy("Preflight")
def preflight(ready: Ready) -> None:
    """Get the host ready for the steps. What stands in its way was found before."""
    packages(name="Packages", wanted=missing(ready.survey))
    account(name="Account", present=ready.survey.account)


@operation()
def packages(wanted: list[str]) -> Generator[StringCommand, None, None]:
    """Install packages, waiting for whoever holds apt's lock."""
    if wanted:
        install = (
            "DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y "
            f"--no-install-recommends install {' '.join(wanted)}"
        )
        update = "apt-get -o DPkg::Lock::Timeout=300 -qq update"
        yield StringCommand(f"{install} || {{ {update} && {install}; }}")


@operation()
def account(present: bool) -> Generator[StringCommand, None, None]:
    """Make the system user that the services run as."""
    if not present:
        yield StringCommand(
            "getent group edge-llm >/dev/null || groupadd --system edge-llm; "
            "id -u edge-llm >/dev/null 2>&1 || useradd --system --gid edge-llm --no-create-home "
            "--home-dir /nonexistent --shell /usr/sbin/nologin edge-llm"
        )
