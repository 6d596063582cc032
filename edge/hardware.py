"""What differs between classes of hardware and between distributions: data, not branches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge.settings import HARDWARE_GROUPS
from edge.survey import Survey

GIB = 1024**3


@dataclass(frozen=True)
class HardwareClass:
    """Defaults of a class of devices.

    `slots` lists (memory in bytes that a host must have, slots), largest first. A board sold with
    4 GB reports less than 4 GiB, so the marks lie below the round number.
    """

    name: str
    title: str
    slots: tuple[tuple[int, int], ...]
    cache_ram_mib: int

    def slots_for(self, memory_total: int) -> int:
        """Generations at once for a host with that much memory (bytes)."""
        return next(slots for memory, slots in self.slots if memory_total >= memory)


# Slots and cache: the starting values of the field notes (N100 -c 4096 -np 2; Ryzen 4c/8t
# -c 8192 -np 4; Pi 5 with 4 GB -c 2048 -np 1, with 8 GB -c 4096 -np 2).
CLASSES = {
    "n100": HardwareClass("n100", "Intel N100 mini PC", ((3 * GIB, 2), (0, 1)), 128),
    "ryzen": HardwareClass("ryzen", "AMD Ryzen", ((7 * GIB, 4), (3 * GIB, 2), (0, 1)), 256),
    "pi5": HardwareClass("pi5", "Raspberry Pi 5", ((6 * GIB, 2), (0, 1)), 64),
    "generic": HardwareClass("generic", "other hardware", ((3 * GIB, 2), (0, 1)), 128),
}


def detect(survey: Survey) -> str:
    """The hardware class that a survey shows."""
    if survey.dt_model.startswith("Raspberry Pi 5"):
        return "pi5"
    if survey.cpu_vendor == "GenuineIntel" and re.search(r"\bN\d{2,3}\b", survey.cpu_model):
        return "n100"
    if survey.cpu_vendor == "AuthenticAMD" and "Ryzen" in survey.cpu_model:
        return "ryzen"
    return "generic"


def classify(groups: Sequence[str], survey: Survey) -> tuple[HardwareClass, str]:
    """The class of a host, and why: its one inventory group, else what its survey shows."""
    named = [group for group in HARDWARE_GROUPS if group in groups]
    seen = detect(survey)
    what = survey.dt_model or survey.cpu_model or survey.arch
    if len(named) == 1:
        reason = f"inventory group {named[0]}"
        if seen not in (named[0], "generic"):
            reason += f" (the hardware looks like {seen}: {what})"
        return CLASSES[named[0]], reason
    state = f"in groups {' and '.join(named)}" if named else "in no hardware group"
    return CLASSES[seen], f"{state}: decided by the survey ({what})"


# The distribution's own python3, for a host on which it is not installed yet.
DISTRIBUTION_PYTHON = {
    ("debian", "12"): "3.11",
    ("raspbian", "12"): "3.11",
    ("debian", "13"): "3.13",
    ("raspbian", "13"): "3.13",
    ("ubuntu", "22.04"): "3.10",
    ("ubuntu", "24.04"): "3.12",
    ("ubuntu", "25.10"): "3.13",
    ("ubuntu", "26.04"): "3.14",
}

PROXY_PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Versions of python3 for which the proxy's dependencies have wheels."""
