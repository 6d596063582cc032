"""A Raspberry Pi's own word for heat and weak power supplies (`vcgencmd get_throttled`). Pure.

The bits: https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
"""

from __future__ import annotations

from dataclasses import dataclass

BITS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
STICKY_SHIFT = 16
REMEDY = "a stronger power supply, a shorter cable, or a fan"


@dataclass(frozen=True)
class Throttling:
    """What holds the board back now, and what has since it was started."""

    now: tuple[str, ...]
    since_boot: tuple[str, ...]

    @classmethod
    def of(cls, bits: int) -> Throttling:
        """From the number that the firmware gives."""
        return cls(_words(bits), _words(bits >> STICKY_SHIFT))

    @property
    def warning(self) -> str:
        """One line for a plan; empty where nothing was."""
        if self.now:
            return f"throttled or low voltage now: {', '.join(self.now)} ({REMEDY})"
        if self.since_boot:
            return f"there was {', '.join(self.since_boot)} since the last boot ({REMEDY})"
        return ""


def _words(bits: int) -> tuple[str, ...]:
    return tuple(word for bit, word in BITS.items() if bits >> bit & 1)
