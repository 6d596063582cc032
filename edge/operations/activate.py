"""Operation: have the agent on the host make the new state live, prove it, or go back."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from pyinfra.api import FunctionCommand, Host, State, operation

from edge.operations.remote import RemoteError, arguments_of, fail, report, run
from edge.render import AGENT
from edge.summary import Outcome, record


@operation()
def activate(
    desired: Mapping[str, Any], *, needed: bool = True
) -> Generator[FunctionCommand, None, None]:
    """Switch releases, restart what runs with another configuration, and pass the gate.

    The agent runs as a unit of its own, so that it ends what it began when this connection dies.
    When the gate fails it goes back to what was last good, serves again, and the host fails here
    with the reason.

    Args:
        desired: what `edge.render.desired_state` says.
        needed: False where the survey and a probe have found all of it true.
    """
    if not needed:
        return
    from pyinfra import host  # the host in whose context the operation is prepared

    yield FunctionCommand(_activate, (desired, arguments_of(host)), {})


def _activate(
    state: State, host: Host, desired: Mapping[str, Any], arguments: dict[str, Any]
) -> bool:
    try:
        output = run(
            host,
            f"systemd-run --quiet --collect --wait --pipe {AGENT} activate",
            arguments,
            stdin=json.dumps(desired),
        )
    except RemoteError as error:
        fail(host, f"{error}\nThe host ends the switch by itself; run again to see how.")
        return False
    try:
        result = json.loads(output.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = output.stderr or output.stdout or "nothing"
        fail(host, f"the agent on the host gave no result; it said: {said}")
        return False
    outcome = Outcome.from_agent(result)
    record(host.name, outcome)
    if outcome.ok:
        restarted = ", ".join(outcome.restarted) or "nothing"
        report(host, f"Serving: restarted {restarted}; {outcome.speed}")
        return True
    lines = [outcome.reason]
    if outcome.rolled_back:
        lines.append(
            "Went back to what was last good; the host "
            + ("serves again." if outcome.serving else "does NOT serve.")
        )
    elif not outcome.serving:
        lines.append("There is no earlier good state to go back to; the services are stopped.")
    fail(host, "\n".join([*lines, *(f"  | {line}" for line in outcome.journal)]))
    return False
