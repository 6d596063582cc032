"""Boot: our tokens on the kernel command line of the next boot, and nothing else of it.

Changes, by what boots the host: a drop-in for GRUB and grub.cfg; one for u-boot-menu and
extlinux.conf; the Raspberry Pi's cmdline.txt, Armbian's armbianEnv.txt, extlinux.conf, or
systemd-boot's entries and /etc/kernel/cmdline; kernelstub's options. What of them is ours stands in
/var/lib/edge-llm/boot.json.
Undo: the same step with nothing asked for (`plan_boot(())`) takes all of it away again.
"""

from __future__ import annotations

from pyinfra import host, logger
from pyinfra.api import deploy

from edge.operations import kernel_cmdline
from edge.ready import Ready


@deploy("Boot")
def boot(ready: Ready) -> None:
    """Write what the plan asks for where the host's boot loader reads it."""
    plan = ready.plan.boot
    for edit in plan.edits:
        for line in edit.lines:
            logger.info(f"{host.print_prefix}{edit.path}: {line}")
    kernel_cmdline.write(name="Kernel command line", plan=plan)
