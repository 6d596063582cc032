"""Tuning: CPU governor, idle states, the journal's size.

Changes: /opt/edge-llm/bin/edge-tuning, /etc/edge-llm/tuning.conf, edge-llm-tuning.service (at once
and at each boot), a drop-in for journald.
Undo: remove the files, reboot.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.differences import tuning_in_effect
from edge.operations import managed
from edge.ready import Ready
from edge.render import JOURNALD_DROP_IN, differing


@deploy("Tuning")
def tuning(ready: Ready) -> None:
    """Apply the tuning now, and at each boot."""
    plan, survey = ready.plan, ready.survey
    write = differing(ready.rendered.tuning, survey.installed.files)
    written = {file.path for file in write}

    then = [f"systemctl disable --quiet --now {rival}" for rival in plan.tuning.disable_rivals]
    unit = survey.installed.units.get("edge-llm-tuning.service", {})
    enabled = unit.get("UnitFileState") == "enabled"
    if written - {JOURNALD_DROP_IN} or not enabled or not tuning_in_effect(plan, survey):
        then += [
            "systemctl daemon-reload",
            "systemctl enable --quiet edge-llm-tuning.service",
            "systemctl restart edge-llm-tuning.service",
        ]
    if JOURNALD_DROP_IN in written or survey.journald_stale:
        then.append("systemctl restart systemd-journald.service")
    managed.files(name="Files", write=write, then=then)
