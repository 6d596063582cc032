"""Preflight: what stands in the way of everything else, as a readable list.

Changes: packages that are missing (python3, libgomp1) and the system user edge-llm.
Undo: `userdel edge-llm`; the packages stay, others may need them.
"""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api import FunctionCommand, Host, State, StringCommand, deploy, operation

from edge.cmdline import CmdlineError, with_tokens
from edge.operations.remote import fail
from edge.plan import ROOT, HostPlan
from edge.ready import Ready
from edge.survey import MIB, Survey

# Room for two engines, two proxies and what unpacking takes, beside the model.
SOFTWARE_BYTES = 300 * MIB
OLDEST_SYSTEMD = 249  # Ubuntu 22.04
PACKAGES = {"python3": "python3", "tar": "tar", "gzip": "gzip"}


def problems(plan: HostPlan, survey: Survey) -> list[str]:
    """Why this host cannot be provisioned, and what to do about each."""
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
    if disk is not None:
        stored = any(m.path == plan.model.path for m in survey.installed.models)
        need = SOFTWARE_BYTES + (0 if stored else plan.model.size_bytes)
        if not disk.writable and survey.uid == 0:
            found.append(f"{disk.mount} is read-only; edge-llm writes {ROOT}")
        elif disk.free_bytes < need:
            found.append(
                f"{disk.mount} has {disk.free_bytes // MIB} MiB free and {need // MIB} are needed "
                f"in {ROOT}: make room, or mount a larger disk there"
            )
    if plan.tuning.boot_loader == "raspberrypi" and plan.tuning.kernel_parameters:
        try:
            with_tokens(survey.cmdline_txt, plan.tuning.kernel_parameters)
        except CmdlineError as error:
            found.append(str(error))
    return found


def missing(survey: Survey) -> list[str]:
    """Debian packages that must be installed first."""
    wanted = [package for tool, package in PACKAGES.items() if tool not in survey.tools]
    return wanted if survey.libgomp else [*wanted, "libgomp1"]


@deploy("Preflight")
def preflight(ready: Ready) -> None:
    """Fail the host with the list of its problems, or get it ready for the steps."""
    blockers(name="Problems", found=problems(ready.plan, ready.survey))
    packages(name="Packages", wanted=missing(ready.survey))
    account(name="Account", present=ready.survey.account)


@operation()
def blockers(found: list[str]) -> Generator[FunctionCommand, None, None]:
    """Fail this host, and no other, if there are problems."""
    if found:
        yield FunctionCommand(_refuse, (found,), {})


def _refuse(state: State, host: Host, found: list[str]) -> bool:
    fail(
        host,
        "not provisioned, nothing was changed:\n" + "\n".join(f"- {p}" for p in found),
        reason="not provisioned: " + "; ".join(found),
    )
    return False


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
            "useradd --system --user-group --no-create-home --home-dir /nonexistent "
            "--shell /usr/sbin/nologin edge-llm"
        )
