"""All machines there are, by hardware class."""

from __future__ import annotations

from collections.abc import Mapping

from lab.machine.look import Look
from lab.machine.pi import PI5
from lab.machine.x86 import N100, RYZEN

MACHINES: Mapping[str, Look] = {look.hardware: look for look in (N100, RYZEN, PI5)}
