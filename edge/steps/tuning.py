"""Tuning: CPU governor, idle states and their like, hardware watchdog, the journal's size.

Changes: /opt/edge-llm/bin/edge-tuning, /etc/edge-llm/tuning.conf, edge-llm-tuning.service and its
timer (at once and at each boot), a drop-in for journald, and one for systemd's hardware watchdog
where that is asked for. What was there before is kept in /var/lib/edge-llm/tuning-before.
Undo: `edge-tuning restore`, remove the files, `systemctl daemon-reexec`.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.differences import tuning_in_effect, watchdog_in_effect
from edge.operations import managed
from edge.ready import Ready
from edge.render import JOURNALD_DROP_IN, WATCHDOG_DROP_IN, differing

SERVICE, TIMER = "edge-llm-tuning.service", "edge-llm-tuning.timer"
APPLY = (
    "systemctl daemon-reload",
    f"systemctl enable --quiet {SERVICE} {TIMER}",
    f"systemctl start {TIMER}",
    # What it could not set is in its log, and a person should not have to look there.
    f"systemctl restart {SERVICE} || {{ journalctl -q -o cat -n 5 -u {SERVICE} >&2; exit 1; }}",
)


@deploy("Tuning")
def tuning(ready: Ready) -> None:
    """Apply the tuning now, and at each boot."""
    plan, survey = ready.plan, ready.survey
    write = differing(ready.rendered.tuning, survey.installed.files)
    written = {file.path for file in write}
    wanted = {file.path for file in ready.rendered.tuning}
    stale = [WATCHDOG_DROP_IN] if WATCHDOG_DROP_IN in {*survey.installed.files} - wanted else []

    then: list[str] = []
    units = survey.installed.units
    enabled = all(
        units.get(unit, {}).get("UnitFileState") == "enabled" for unit in (SERVICE, TIMER)
    )
    drop_ins = {JOURNALD_DROP_IN, WATCHDOG_DROP_IN}
    if written - drop_ins or not enabled or not tuning_in_effect(plan, survey):
        then += APPLY
    if JOURNALD_DROP_IN in written or survey.journald_stale:
        then.append("systemctl restart systemd-journald.service")
    if WATCHDOG_DROP_IN in {*written, *stale} or not watchdog_in_effect(plan, survey):
        then.append("systemctl daemon-reexec")
    managed.files(name="Files", write=write, remove=stale, then=then)
