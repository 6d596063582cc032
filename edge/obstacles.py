"""What stands in the way of provisioning a host, as a readable list. Pure.

Asked before anything is fetched or changed, and by `edge plan`.
"""

from __future__ import annotations

from edge.plan import ROOT, HostPlan
from edge.sizing import mib
from edge.survey import MIB, Disk, Survey

# Room for two engines, two proxies and what unpacking takes, beside the model.
SOFTWARE_BYTES = 300 * MIB
OLDEST_SYSTEMD = 249  # Ubuntu 22.04
PACKAGES = {"python3": "python3", "tar": "tar", "gzip": "gzip"}


def of_host(survey: Survey) -> list[str]:
    """Why this host cannot be provisioned whatever its plan, and what to do about each."""
    found = []
    if survey.uid != 0:
        found.append(
            f"root is needed, and commands run as uid {survey.uid}: log in as root, or install "
            "sudo and set _sudo = True in the inventory"
        )
    if survey.init != "systemd":
        found.append(f"the host was not started by systemd but by {survey.init or 'nothing known'}")
    elif survey.systemd < OLDEST_SYSTEMD:
        found.append(f"systemd {survey.systemd} is too old; {OLDEST_SYSTEMD} or later is needed")
    if missing(survey) and "apt-get" not in survey.tools:
        found.append(
            f"{', '.join(missing(survey))} missing, and there is no apt-get: install by hand"
        )
    disk = survey.disks.get(ROOT)
    if disk is not None and not disk.writable and survey.uid == 0:
        found.append(f"{disk.mount} is read-only; edge-llm writes {ROOT}")
    elif disk is not None and disk.free_bytes < SOFTWARE_BYTES:
        found.append(_too_full(disk, SOFTWARE_BYTES))
    return found


def of_plan(plan: HostPlan, survey: Survey) -> list[str]:
    """Why this plan cannot be carried out on this host, and what to do about each."""
    found = []
    stored = any(model.path == plan.model.path for model in survey.installed.models)
    need = SOFTWARE_BYTES + (0 if stored else plan.model.size_bytes)
    disk = survey.disks.get(ROOT)
    if disk is not None and SOFTWARE_BYTES <= disk.free_bytes < need:
        found.append(_too_full(disk, need))
    return [*found, *plan.boot.problems]


def _too_full(disk: Disk, need: int) -> str:
    return (
        f"{disk.mount} has {disk.free_bytes // MIB} MiB free and {mib(need)} are needed in "
        f"{ROOT}: make room, or mount a larger disk there"
    )


def missing(survey: Survey) -> list[str]:
    """Debian packages that must be installed first."""
    wanted = [package for tool, package in PACKAGES.items() if tool not in survey.tools]
    return wanted if survey.libgomp else [*wanted, "libgomp1"]
