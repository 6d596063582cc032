"""Which host needs a reboot, and why. Pure.

`plan_reboot` is asked once, by the solver; the plan's rows, the dry run, the step, the table at the
end and the verification say and do what its answer holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.boot import BootPlan
from edge.boot.loader import find
from edge.boot.next_boot import lacking
from edge.settings import Settings
from edge.survey import Survey
from edge.tuning import MEMORY_CGROUP_TOKENS

NEVER, IF_NEEDED = "never", "if_needed"


@dataclass(frozen=True)
class RebootPlan:
    """What waits for a host's next boot, and whether a rollout brings that boot about."""

    when: str
    """The setting `reboot`: never or if_needed."""
    timeout_s: int
    """Longest wait for SSH after a reboot."""
    waiting: tuple[str, ...]
    """Kernel parameters that act only from the next boot."""
    until: str
    """What the host lacks until then; "" where it can do without."""
    warnings: tuple[str, ...]

    @property
    def due(self) -> bool:
        """Whether a rollout reboots this host once its gate is green."""
        return self.when == IF_NEEDED and bool(self.waiting)

    @property
    def why(self) -> str:
        """What is to be known of the wait before a rollout; "" where nothing is waiting."""
        if not self.waiting:
            return ""
        when = "the next rollout reboots it" if self.due else "when it is rebooted"
        return "; ".join(filter(None, [f"{when} (reboot = {self.when})", self.until]))

    @property
    def says(self) -> str:
        """What is to be known of it after a rollout; "" where nothing is waiting."""
        if not self.waiting:
            return ""
        until = f" ({self.until})" if self.until else ""
        return f"takes effect at the next boot: {' '.join(self.waiting)}{until}"


def plan_reboot(settings: Settings, boot: BootPlan, survey: Survey) -> RebootPlan:
    """Whether a host needs a reboot: what is asked of its kernel and is not in /proc/cmdline."""
    until, warnings = "", []
    if survey.cgroup_version == 2 and "memory" not in survey.cgroup_controllers:
        if not set(MEMORY_CGROUP_TOKENS).isdisjoint(boot.pending):
            until = "memory limits are not enforced until then"
        else:
            warnings.append("memory limits are not enforced: the kernel has no memory cgroup")
    return RebootPlan(
        when=settings.reboot,
        timeout_s=settings.reboot_timeout_s,
        waiting=boot.pending,
        until=until,
        warnings=tuple(warnings),
    )


def still_missing(waiting: Sequence[str], cmdline: str) -> tuple[str, ...]:
    """What a kernel command line lacks of what was waiting."""
    return tuple(token for token in waiting if token not in cmdline.split())


def in_vain(waiting: Sequence[str], survey: Survey) -> str:
    """Why a reboot would not bring what is waiting; "" if it would.

    By what the boot loader itself reads, as the survey found it just now.
    """
    loader = find(survey.boot, survey.cmdline, survey.dt_model)
    where, missing = lacking(waiting, survey.boot, loader)
    return f"{where} does not hold {' '.join(missing)}" if missing else ""


def refusal(boot_id: str, own_boot_id: str, *, local: bool) -> str:
    """Why a host is never rebooted by this controller; "" if it may be.

    Args:
        boot_id: the host's.
        own_boot_id: that of the machine that pyinfra runs on; "" where it has none.
        local: whether the host is @local.
    """
    if local or boot_id == own_boot_id:
        return "it runs on the kernel of the machine that runs pyinfra: reboot that one yourself"
    return ""
