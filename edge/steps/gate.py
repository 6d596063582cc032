"""Gate: the switch to the new state, and the proof that the host serves.

Changes: the `current` links, which services run, /var/lib/edge-llm (manifest, last good state).
Undo: the agent goes back by itself when the proof fails.
"""

from __future__ import annotations

import json

from pyinfra import host
from pyinfra.api import deploy

from edge.differences import live
from edge.facts import Probe
from edge.operations.activate import activate
from edge.ready import Ready
from edge.render import desired_state
from edge.summary import Outcome, record


@deploy("Gate")
def gate(ready: Ready) -> None:
    """Ask a live host for a real answer; have any other switch, prove itself, or go back."""
    desired = desired_state(ready.plan, ready.rendered)
    needed = True
    if live(ready.plan, ready.rendered, ready.survey):
        outcome = _probe(json.dumps(desired))
        needed = not outcome.ok
        if outcome.ok:
            record(host.name, outcome)
    activate(name="Switch and prove", desired=desired, needed=needed)


def _probe(desired: str) -> Outcome:
    text = host.get_fact(Probe, desired=desired) or ""
    try:
        return Outcome.from_agent(json.loads(text.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Outcome(ok=False, reason="the agent on the host gave no result")
