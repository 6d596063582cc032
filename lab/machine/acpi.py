"""P-states and C-states for a QEMU machine: an ACPI table of ours, since QEMU's have none.

acpi-cpufreq then binds and the governor is real. Each processor has an I/O port of its own as its
P-state control: what the kernel asks of the "hardware" arrives there byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.system import run

#: Processor n's P-state control. Clear of 0x510 (fw_cfg), 0x600 (the chipset's power management)
#: and everything else that a q35 has below 0xcf8.
FIRST_PORT = 0x5E0
_C_STATE_PORTS = (0x5F0, 0x5F1)
MAX_CPUS = _C_STATE_PORTS[0] - FIRST_PORT


@dataclass(frozen=True)
class PState:
    """One P-state: the frequency that it is listed with, and the byte that asks for it."""

    mhz: int
    code: int


def pstates(*mhz: int) -> tuple[PState, ...]:
    """P-states for falling frequencies, with the codes 0x10 (the fastest), 0x20, …"""
    return tuple(PState(value, 0x10 * (number + 1)) for number, value in enumerate(mhz))


def table(cpus: int, states: Sequence[PState]) -> str:
    r"""The table in ACPI's source language.

    \_SB.CPUS.C000 and so on are QEMU's own objects for its processors.
    """
    if not 1 <= cpus <= MAX_CPUS:
        raise ValueError(f"{cpus} processors: there are ports for 1 to {MAX_CPUS}")
    devices = [f"\\_SB.CPUS.C{cpu:03X}" for cpu in range(cpus)]
    externals = "".join(f"    External ({device}, DeviceObj)\n" for device in devices)
    scopes = "".join(_processor(device, cpu, states) for cpu, device in enumerate(devices))
    return f'DefinitionBlock ("", "SSDT", 2, "LAB", "CPUPM", 1)\n{{\n{externals}{scopes}}}\n'


def _processor(device: str, cpu: int, states: Sequence[PState]) -> str:
    port = f"Register (SystemIO, 8, 0, 0x{FIRST_PORT + cpu:04X}, ,)"
    # Frequency (MHz), power (mW), transition and bus-master latency (us), control, status.
    listed = ",\n".join(
        f"            Package () {{ {state.mhz}, {state.mhz * 2}, 10, 10, {state.code}, "
        f"{state.code} }}"
        for state in states
    )
    return f"""
    Scope ({device})
    {{
        Name (_PCT, Package () {{
            ResourceTemplate () {{ {port} }},
            ResourceTemplate () {{ {port} }} }})
        Name (_PSS, Package () {{
{listed} }})
        Method (_PPC, 0) {{ Return (0) }}
        Name (_PSD, Package () {{ Package () {{ 5, 0, {cpu}, 0xFC, 1 }} }})
{_C_STATES}    }}
"""


# C1 halts. C2 and C3 are port reads that do not sleep here, so they are listed with latencies of
# 10 and 20 s (in us): a limit cuts them off, and the idle governor never picks them.
_C_STATES = f"""\
        Name (_CST, Package () {{ 3,
            Package () {{ ResourceTemplate () {{ Register (FFixedHW, 0, 0, 0, ,) }},
                1, 1, 1000 }},
            Package () {{ ResourceTemplate () {{ Register (SystemIO, 8, 0, 0x{_C_STATE_PORTS[0]:04X}, ,) }},
                2, 10000000, 500 }},
            Package () {{ ResourceTemplate () {{ Register (SystemIO, 8, 0, 0x{_C_STATE_PORTS[1]:04X}, ,) }},
                3, 20000000, 200 }} }})
"""  # noqa: E501


def compile_table(source: str, target: Path) -> None:
    """Compile a table for QEMU's -acpitable; raises LabError with the compiler's words."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "table.asl"
        file.write_text(source)
        run(["iasl", "-p", str(file.with_suffix("")), str(file)])
        target.write_bytes(file.with_suffix(".aml").read_bytes())
