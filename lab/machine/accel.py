"""What a machine runs under: KVM where it was seen to boot under it here, else emulation (TCG)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from pathlib import Path

from lab.machine import qemu
from lab.machine.look import Look
from lab.paths import Lab, LabError
from lab.progress import say
from lab.system import write

# A boot under KVM takes a few seconds; under a KVM that does not work it never ends.
_PROBE_S = 60.0
_KVM = Path("/dev/kvm")


def choose(lab: Lab, look: Look, disk: Path) -> str:
    """kvm or tcg for machines of this look and disk. The answer of a probe is kept in the cache."""
    if look.architecture != platform.machine() or not os.access(_KVM, os.R_OK | os.W_OK):
        return "tcg"
    seen = lab.images / f"kvm-{look.hardware}-{_digest(look, disk)}.json"
    if not seen.exists():
        write(seen, json.dumps(_probe(look, disk)) + "\n")
    return "kvm" if json.loads(seen.read_text())["boots"] else "tcg"


def _probe(look: Look, disk: Path) -> dict[str, object]:
    from lab.machine.frozen import first_boot

    say(f"trying whether a {look.hardware} boots under KVM here (at most {_PROBE_S:.0f} s, once)")
    try:
        with first_boot(look, disk, "kvm") as machine:
            machine.await_ready(_PROBE_S)
    except LabError as error:
        say("it does not: emulating it (TCG)")
        return {"boots": False, "why": str(error)}
    say("it does")
    return {"boots": True}


def _digest(look: Look, disk: Path) -> str:
    """Of what decides whether it boots: the disk, the look, QEMU, and the kernel with its CPU."""
    parts = [
        disk.name,
        qemu.command(look, "name", "kvm"),
        qemu.version(look.emulator),
        platform.release(),
        processor(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def processor() -> str:
    """This machine's processor with its features, as its kernel shows them."""
    text = Path("/proc/cpuinfo").read_text()
    lines = re.findall(
        r"^(?:vendor_id|cpu family|model|model name|stepping|flags)\s*:.*$", text, re.M
    )
    return "\n".join(dict.fromkeys(lines))
