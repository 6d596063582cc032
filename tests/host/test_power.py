"""A Raspberry Pi's own word for heat and weak power supplies."""

from __future__ import annotations

from checks import Say, expect
from machine import Machine

from edge.throttling import REMEDY, Throttling


def test_is_not_throttled(machine: Machine, say: Say) -> None:
    """What holds it back now fails; what has since the last boot is said."""
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
    found = Throttling.of(bits)
    where = f"vcgencmd get_throttled: {bits:#x}"
    expect("nothing", ", ".join(found.now) or "nothing", where, REMEDY)
    if found.since_boot:
        say.note(f"since the last boot there was: {', '.join(found.since_boot)} ({REMEDY})")
