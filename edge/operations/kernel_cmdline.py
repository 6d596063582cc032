"""Operation: write a host's boot files."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import StringCommand, operation

from edge.boot import BootPlan
from edge.boot.script import script


@operation()
def write(plan: BootPlan) -> Generator[StringCommand, None, None]:
    """Edit the boot files and run the loader's tool, in one round trip.

    A file that is no longer what the survey saw fails the host before anything is written.
    """
    if plan.changes:
        yield StringCommand(script(plan))
