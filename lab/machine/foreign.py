"""Running another architecture's programs while a tree is built: qemu-user, by binfmt_misc.

Only for the build, and undone after it. Where the machine has such an entry already (Debian's
binfmt-support, systemd-binfmt), that one is used and left alone.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.paths import LabError
from lab.system import run

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# qemu-user-static's own lines: magic, mask, its interpreter, and flags for use in a chroot.
_LINES = Path("/usr/lib/binfmt.d")


@contextmanager
def programs_of(architecture: str) -> Iterator[None]:
    """Programs of an architecture (the kernel's name: aarch64) run while this holds.

    Raises LabError where this machine's kernel cannot be told to.
    """
    entry = _BINFMT / f"qemu-{architecture}"
    if platform.machine() == architecture or entry.exists():
        yield
        return
    mounted = not (_BINFMT / "register").exists()
    if mounted:
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)])
    try:
        # The mount may have brought the entry back that somebody made before.
        added = not entry.exists()
        if added:
            _register(architecture)
        try:
            yield
        finally:
            if added:
                entry.write_text("-1")
    finally:
        if mounted:
            run(["umount", str(_BINFMT)])


def _register(architecture: str) -> None:
    conf = _LINES / f"qemu-{architecture}.conf"
    try:
        (_BINFMT / "register").write_text(conf.read_text().strip())
    except OSError as error:
        raise LabError(
            f"programs for {architecture} cannot be run here while its image is built ({error}): "
            f"{conf} (of qemu-user-static) has to be registered with binfmt_misc"
        ) from error
