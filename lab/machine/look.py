"""What a class of machine is: its processors, its firmware, its disk, and how it boots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.paths import Lab


class Look(Protocol):
    """One hardware class as a machine. lab.machine.looks.MACHINES has one for each."""

    @property
    def hardware(self) -> str:
        """The class: n100, ryzen, pi5."""

    @property
    def emulator(self) -> str:
        """QEMU's program for it."""

    @property
    def architecture(self) -> str:
        """Of its processors, as the kernel calls it (x86_64, aarch64)."""

    @property
    def emulation(self) -> str:
        """QEMU's word for its threads where it emulates: multi (one for each processor), single."""

    @property
    def reboots_itself(self) -> bool:
        """True where a reset of the machine boots from its disk by itself (firmware, GRUB).

        False where QEMU loads the kernel: it then ends at a reboot, and is started anew with what
        the disk says by then.
        """

    def image(self, lab: Lab) -> Path:
        """The disk (qcow2) that its hosts begin with, in the cache; made first if need be."""

    def prepare(self, directory: Path) -> None:
        """Make the files that `arguments` and `boot_arguments` name, in a host's directory."""

    def arguments(self) -> Sequence[str]:
        """What makes the machine this one, for QEMU started in the host's directory."""

    def boot_arguments(self, directory: Path, disk: Path) -> Sequence[str]:
        """What this boot needs besides, read from the host's disk; empty for `reboots_itself`."""


@dataclass(frozen=True)
class Processors:
    """So many cores, each with so many threads."""

    cores: int
    threads: int = 1

    @property
    def count(self) -> int:
        """Logical processors."""
        return self.cores * self.threads

    @property
    def smp(self) -> str:
        """The value of QEMU's -smp."""
        return f"cpus={self.count},sockets=1,cores={self.cores},threads={self.threads}"
