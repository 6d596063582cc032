"""Tuning: CPU governor, idle states, kernel command line, the journal's size.

Changes: /opt/edge-llm/bin/edge-tuning, /etc/edge-llm/tuning.conf, edge-llm-tuning.service (at once
and at each boot), a drop-in for journald, one for GRUB, or tokens in the Raspberry Pi's
cmdline.txt (from the next boot).
Undo: remove the files, `update-grub`, reboot; cmdline.txt.edge-llm.bak is the former cmdline.txt.
"""

from __future__ import annotations

from pyinfra.api import deploy

from edge.differences import tuning_in_effect
from edge.operations import kernel_cmdline, managed
from edge.ready import Ready
from edge.render import GRUB_DROP_IN, JOURNALD_DROP_IN, differing

UPDATE_GRUB = (
    "if command -v update-grub >/dev/null; then update-grub; "
    "else grub-mkconfig -o /boot/grub/grub.cfg; fi >/dev/null 2>&1"
)


@deploy("Tuning")
def tuning(ready: Ready) -> None:
    """Apply the tuning now, and at each boot."""
    plan, survey = ready.plan, ready.survey
    write = differing(ready.rendered.tuning, survey.installed.files)
    written = {file.path for file in write}
    drop_in = GRUB_DROP_IN in {file.path for file in ready.rendered.tuning}
    stale = [GRUB_DROP_IN] if GRUB_DROP_IN in survey.installed.files and not drop_in else []

    then = [f"systemctl disable --quiet --now {rival}" for rival in plan.tuning.disable_rivals]
    unit = survey.installed.units.get("edge-llm-tuning.service", {})
    enabled = unit.get("UnitFileState") == "enabled"
    if (
        written - {JOURNALD_DROP_IN, GRUB_DROP_IN}
        or not enabled
        or not tuning_in_effect(plan, survey)
    ):
        then += [
            "systemctl daemon-reload",
            "systemctl enable --quiet edge-llm-tuning.service",
            "systemctl restart edge-llm-tuning.service",
        ]
    if JOURNALD_DROP_IN in written or survey.journald_stale:
        then.append("systemctl restart systemd-journald.service")
    # What grub.cfg holds decides, not whether this run wrote the drop-in.
    lacking = set(plan.tuning.kernel_parameters) - set(survey.grub_cmdline.split())
    if GRUB_DROP_IN in written or stale or (drop_in and lacking):
        then.append(UPDATE_GRUB)
    managed.files(name="Files", write=write, remove=stale, then=then)

    if plan.tuning.boot_loader == "raspberrypi" and plan.tuning.kernel_parameters:
        kernel_cmdline.raspberry_pi(
            name="Kernel command line",
            found=survey.cmdline_txt,
            tokens=plan.tuning.kernel_parameters,
        )
