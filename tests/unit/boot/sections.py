"""The survey's sections on boot files, written as its script prints them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping


def boot_files(files: Mapping[str, str]) -> str:
    """Section boot_files: path to content."""
    return "\n".join(
        f"{len(text.encode())} {_encoded(text)} {path}" for path, text in files.items()
    )


def grub_cfg(entries: Iterable[str], path: str = "/boot/grub/grub.cfg") -> str:
    """Section grub_cfg: one grub.cfg with these entries, each as "IMAGE PARAMETERS"."""
    lines = "".join(f"\tlinux\t{entry}\n" for entry in entries)
    return f"- {_encoded(lines)} {path}"


GRUB_TOOLS = """\
folder /etc/default/grub.d
folder /etc/kernel
tool update-grub /usr/sbin/update-grub
tool grub-mkconfig /usr/sbin/grub-mkconfig
drop-ins grub"""


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
