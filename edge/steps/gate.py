"""Gate: the switch to the new state, and the proof that the host serves.

Changes: the `current` links, which services run, /var/lib/edge-llm (manifest, last good state).
Undo: the agent goes back by itself when the proof fails.
"""

from __future__ import annotations

import json

from pyinfra import host
from pyinfra.api import deploy

from edge.facts import Probe
from edge.operations.activate import activate
from edge.plan import HostPlan
from edge.prepare import Ready
from edge.render import ENABLED_UNITS, Rendered, desired_state, differing
from edge.steps import engine, model, proxy
from edge.summary import Outcome, record
from edge.survey import Survey


def live(plan: HostPlan, rendered: Rendered, survey: Survey) -> bool:
    """Whether the host runs, by its own survey, exactly what the plan wants.

    What runs is read from the processes themselves: a run that died between writing a unit and
    restarting it leaves the difference to be seen.
    """
    here = survey.installed
    manifest = here.manifest or {}
    return (
        not model.needed(plan, survey)
        and not engine.needed(plan, survey)
        and not proxy.needed(plan, survey)
        and not differing((rendered.agent, *rendered.services), here.files)
        and not here.overrides
        and here.engine_current == plan.engine.release_id
        and here.proxy_current == plan.proxy.release_id
        and manifest.get("digests") == rendered.digests
        and all(
            unit in here.running
            and here.running[unit].digest == digest
            and not here.running[unit].stale
            for unit, digest in rendered.digests.items()
        )
        and all(
            here.units.get(unit, {}).get("ActiveState") == "active"
            and here.units[unit].get("UnitFileState") == "enabled"
            and here.units[unit].get("NeedDaemonReload") == "no"
            for unit in ENABLED_UNITS
        )
    )


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
