"""The arm64 machine: QEMU's virt board with the look of a Raspberry Pi 5.

`python -m lab.machine.pi` makes its image; with `--cached` it says whether there is one.
Stand-ins, where QEMU has no Pi 5: the boot (lab.machine.pi_firmware), vcgencmd and its throttle
bits (a script and a file, lab.machine.pi_image), and the watchdog, which is Intel's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import packages
from lab.machine import pi_firmware, pi_image, pi_tree
from lab.machine.look import Processors
from lab.paths import Lab, LabError
from lab.progress import say

_TREE = "pi5.dtb"


@dataclass(frozen=True)
class PiLook:
    """A Pi 5 with the processor that it has, Cortex-A76."""

    hardware: str
    processors: Processors
    memory_mib: int

    emulator = "qemu-system-aarch64"
    architecture = "aarch64"
    # An arm64 kernel tells all processors at once what to forget of the page tables, for which all
    # of QEMU's threads have to meet: on two busy cores one thread boots in 60 s and four do not in
    # 400. One thread takes turns where a program says that it only waits.
    emulation = "single"
    reboots_itself = False

    def image(self, lab: Lab) -> Path:
        """Debian for arm64, laid out like Raspberry Pi OS."""
        packages.ensure(packages.ARM64_MACHINE)
        return pi_image.ensure(lab)

    def prepare(self, directory: Path) -> None:
        """The device tree."""
        pi_tree.write(self.emulator, self._board(), directory / _TREE)

    def arguments(self) -> Sequence[str]:
        """Board, processors, memory, device tree, and a watchdog as a Pi has one."""
        return [*self._board(), "-dtb", _TREE, "-device", "i6300esb"]

    def boot_arguments(self, directory: Path, disk: Path) -> Sequence[str]:
        """Kernel, initrd and command line, as the FAT partition has them now."""
        return pi_firmware.load(directory, disk)

    def _board(self) -> list[str]:
        return [
            *("-machine", "virt,gic-version=3"),
            *("-cpu", "cortex-a76"),
            *("-smp", self.processors.smp),
            *("-m", str(self.memory_mib)),
        ]


PI5 = PiLook(hardware="pi5", processors=Processors(cores=4), memory_mib=2048)


def main(arguments: Sequence[str]) -> int:
    """Make the image, or (--cached) say whether it is there; returns an exit code."""
    lab = Lab.from_environment()
    if "--cached" not in arguments:
        PI5.image(lab)
    elif pi_image.cached(lab) is None:
        say("the arm64 machine's image is not in the cache: `make test-vm-arm64` makes it")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LabError as error:
        sys.exit(f"Error: {error}")
