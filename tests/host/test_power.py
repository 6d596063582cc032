"""A Raspberry Pi's own word for heat and weak power supplies."""

from __future__ import annotations

from checks import Say, expect
from machine import Machine

# https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
LIVE = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
STICKY_SHIFT = 16
REMEDY = "a stronger power supply, a shorter cable, or a fan"


def test_is_not_throttled(machine: Machine, say: Say) -> None:
    places = "/proc/device-tree/model /sys/firmware/devicetree/base/model"
    model = machine.run(f"cat {places} 2>/dev/null | tr -d '\\000'")
    if not model.startswith("Raspberry Pi"):
        say.note("n/a: not a Raspberry Pi")
        return
    status, out, _ = machine.try_run("vcgencmd get_throttled")
    if status:
        say.note("not known: vcgencmd is not installed here, or does not answer")
        return
    bits = int(out.partition("=")[2], 16)
    live = [text for bit, text in LIVE.items() if bits >> bit & 1]
    expect("nothing", ", ".join(live) or "nothing", f"vcgencmd get_throttled: {bits:#x}", REMEDY)
    if past := [text for bit, text in LIVE.items() if bits >> STICKY_SHIFT + bit & 1]:
        say.note(f"since the last boot there was: {', '.join(past)} ({REMEDY})")
