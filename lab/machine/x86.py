"""The x86 machines: a PC with BIOS and GRUB that looks like an N100 or a Ryzen mini PC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.machine import acpi, image
from lab.machine.acpi import PState, pstates
from lab.machine.look import Processors
from lab.paths import Lab

_TABLE = "pm.aml"


@dataclass(frozen=True)
class PcLook:
    """A mini PC. cpu: the value of QEMU's -cpu. dmi: fields of SMBIOS type 1 (system)."""

    hardware: str
    cpu: str
    processors: Processors
    memory_mib: int
    dmi: Mapping[str, str]
    bios: Mapping[str, str]
    pstates: tuple[PState, ...]

    emulator = "qemu-system-x86_64"
    architecture = "x86_64"
    emulation = "multi"
    reboots_itself = True

    def image(self, lab: Lab) -> Path:
        """Debian with its stock kernel and GRUB."""
        return image.ensure(lab)

    def prepare(self, directory: Path) -> None:
        """The ACPI table."""
        acpi.compile_table(acpi.table(self.processors.count, self.pstates), directory / _TABLE)

    def arguments(self) -> Sequence[str]:
        """Chipset, processors, memory, firmware tables, and a file for each P-state control."""
        words = [
            *("-machine", "q35"),
            *("-cpu", self.cpu),
            *("-smp", self.processors.smp),
            *("-m", str(self.memory_mib)),
            *("-acpitable", f"file={_TABLE}"),
            *("-smbios", _smbios(0, self.bios)),
            *("-smbios", _smbios(1, self.dmi)),
            *("-smbios", _smbios(2, self.dmi)),
            *("-smbios", _smbios(3, {"manufacturer": self.dmi["manufacturer"]})),
            # The chipset's watchdog may reset the machine, as boards have it.
            *("-global", "ICH9-LPC.noreboot=off"),
            # Another number after each resume: the kernel then draws its randomness anew.
            *("-device", "vmgenid,guid=auto"),
        ]
        for cpu in range(self.processors.count):
            port = acpi.FIRST_PORT + cpu
            words += ["-chardev", f"file,id=pstate{cpu},path={pstate_file(cpu)}"]
            words += ["-device", f"isa-debugcon,iobase={port:#x},chardev=pstate{cpu}"]
        return words

    def boot_arguments(self, directory: Path, disk: Path) -> Sequence[str]:
        """Nothing: the BIOS starts what is on the disk."""
        return ()


def pstate_file(cpu: int) -> str:
    """Where a processor's P-state control writes, in the host's directory."""
    return f"pstate{cpu}"


def read_pstates(directory: Path) -> list[bytes]:
    """What each processor's P-state control received since the power came on, the oldest first."""
    files = sorted(directory.glob("pstate[0-9]*"), key=lambda path: int(path.name[6:]))
    return [file.read_bytes() for file in files]


def _smbios(kind: int, fields: Mapping[str, str]) -> str:
    # A comma would end the value: QEMU takes two for one.
    pairs = "".join(f",{key}={value.replace(',', ',,')}" for key, value in fields.items())
    return f"type={kind}{pairs}"


def _cpu(vendor: str, family: int, model: int, stepping: int, name: str, *more: str) -> str:
    identity = f"vendor={vendor},family={family},model={model},stepping={stepping}"
    return ",".join(["max,la57=off", identity, f"model-id={name}", *more])


N100 = PcLook(
    hardware="n100",
    cpu=_cpu("GenuineIntel", 6, 190, 0, "Intel(R) N100"),
    processors=Processors(cores=4),
    memory_mib=2048,
    dmi={"manufacturer": "AZW", "product": "MINI S", "version": "1.0"},
    bios={"vendor": "American Megatrends International, LLC.", "version": "ADLNV106"},
    pstates=pstates(3400, 2000, 800),
)
RYZEN = PcLook(
    hardware="ryzen",
    # Zen+, four cores with eight threads. QEMU's emulation knows the leaves that tell an AMD core's
    # threads apart (topoext, 0x8000001e) but shows them only when forced to.
    cpu=_cpu(
        *("AuthenticAMD", 23, 24, 1, "AMD Ryzen 5 3550H with Radeon Vega Mobile Gfx"),
        *("topoext=on", "xlevel=0x8000001e", "x-force-features=on"),
    ),
    processors=Processors(cores=4, threads=2),
    memory_mib=2048,
    dmi={
        "manufacturer": "Micro Computer (HK) Tech Limited",
        "product": "UM350",
        "version": "1.0",
    },
    bios={"vendor": "AMI", "version": "1.12"},
    pstates=pstates(2100, 1700, 1400),
)
