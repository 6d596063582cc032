"""What a Pi's firmware does before the kernel: it reads the FAT partition as it is at that moment.

Kernel, initrd and command line of each boot are taken from the machine's own disk, so that what
was written to /boot/firmware decides, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.machine.pi_image import BOOT_SIZE_MIB, BOOT_START_MIB, INITRD, KERNEL
from lab.paths import LabError
from lab.system import run

_PARTITION = "firmware.img"
_CMDLINE = "cmdline.txt"
# What a Pi 5's firmware puts before cmdline.txt, less the parts that name its devices:
# https://github.com/raspberrypi/linux/issues/6980
_BOOTARGS = (
    "reboot=w coherent_pool=1M 8250.nr_uarts=1 pci=pcie_bus_safe cgroup_disable=memory "
    "numa_policy=interleave"
)
_MEMORY_OFF, _MEMORY_ON = "cgroup_disable=memory", "cgroup_enable=memory"
_SERIAL = "ttyAMA0"


def load(directory: Path, disk: Path) -> Sequence[str]:
    """QEMU's arguments for one boot of a disk (qcow2); the files are put into the directory.

    Raises LabError where the partition lacks what a boot needs.
    """
    partition = directory / _PARTITION
    _extract(disk, partition)
    try:
        for name in (KERNEL, INITRD):
            (directory / name).unlink(missing_ok=True)
            run(["mcopy", "-i", str(partition), f"::/{name}", str(directory / name)])
        line = command_line(run(["mtype", "-i", str(partition), f"::/{_CMDLINE}"]))
    except LabError as error:
        raise LabError(f"the firmware cannot boot this machine: {error}") from error
    finally:
        partition.unlink(missing_ok=True)
    return ["-kernel", KERNEL, "-initrd", INITRD, "-append", line]


def command_line(cmdline_txt: str) -> str:
    """The kernel's command line: the firmware's words, then the first line of cmdline.txt.

    A Pi's kernel has a patch by which `cgroup_enable=memory` undoes `cgroup_disable=memory`
    (https://github.com/raspberrypi/linux/pull/6524). Debian's has not, so here the latter is left
    out where the former is asked for: a stand-in with the same effect.
    """
    first = (cmdline_txt.splitlines() or [""])[0].split()
    asked = [token.replace("serial0", _SERIAL) for token in first]
    firmware = _BOOTARGS.split()
    if _MEMORY_ON in asked:
        firmware.remove(_MEMORY_OFF)
    return " ".join([*firmware, *asked])


def _extract(disk: Path, target: Path) -> None:
    window = f"driver=raw,offset={BOOT_START_MIB << 20},size={BOOT_SIZE_MIB << 20}"
    source = f"{window},file.driver=qcow2,file.file.filename={disk}"
    run(["qemu-img", "convert", "--image-opts", "-O", "raw", source, str(target)])
