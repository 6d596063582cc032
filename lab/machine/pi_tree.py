"""The device tree of the arm64 machine: QEMU's own for its virt board, with a Pi 5's name on it.

And with operating points for its processors, so that cpufreq-dt binds to them as on a Pi.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.paths import LabError
from lab.system import run

MODEL = "Raspberry Pi 5 Model B Rev 1.0"
_COMPATIBLE = ("raspberrypi,5-model-b", "brcm,bcm2712")
# A Pi 5's: https://www.raspberrypi.com/documentation/computers/config_txt.html, arm_freq and
# arm_freq_min.
FREQUENCIES_MHZ = (1500, 2400)
_QEMU = "linux,dummy-virt"


def write(emulator: str, arguments: Sequence[str], target: Path) -> None:
    """Compile the tree of the machine that these arguments make. Same arguments, same bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        dumped, source = Path(scratch) / "virt.dtb", Path(scratch) / "pi5.dts"
        dump = ["-machine", f"dumpdtb={dumped}", "-nodefaults", "-display", "none"]
        run([emulator, *arguments, *dump])
        source.write_text(as_pi5(run(["dtc", "-q", "-I", "dtb", "-O", "dts", str(dumped)])))
        run(["dtc", "-q", "-I", "dts", "-O", "dtb", "-o", str(target), str(source)])


def as_pi5(source: str) -> str:
    """The source of a virt board's tree, renamed and with frequencies; raises LabError if it is
    not one."""
    names = ", ".join(f'"{name}"' for name in (*_COMPATIBLE, _QEMU))
    edits = (
        (f'model = "{_QEMU}";', f'model = "{MODEL}";', 1),
        (f'compatible = "{_QEMU}";', f"compatible = {names};", 1),
        (r"(\n\t\tcpu@[0-9a-f]+ \{\n)", rf"\1{_CPU}", 0),
        (r"\n\tcpus \{\n", f"\n{_CLOCK}\n\tcpus {{\n", 1),
    )
    for pattern, replacement, count in edits:
        source, made = re.subn(pattern, replacement, source, count=count)
        if not made:
            raise LabError(f"QEMU's device tree has no {pattern!r}: it is not a virt board's")
    # Another number each time: machines that are resumed must be the same.
    return re.sub(r"\t*(?:rng|kaslr)-seed = <[^>]*>;\n", "", source)


_CPU = "\t\t\tclocks = <&labclock>;\n\t\t\toperating-points-v2 = <&labpoints>;\n"
_POINTS = "".join(
    f"\t\topp-{mhz}000000 {{ opp-hz = /bits/ 64 <{mhz}000000>; }};\n" for mhz in FREQUENCIES_MHZ
)
_CLOCK = f"""\
\tlabclock: lab-cpu-clock {{
\t\tcompatible = "fixed-clock";
\t\t#clock-cells = <0>;
\t\tclock-frequency = <{max(FREQUENCIES_MHZ)}000000>;
\t}};
\tlabpoints: lab-opp-table {{
\t\tcompatible = "operating-points-v2";
\t\topp-shared;
{_POINTS}\t}};
"""
