"""The packages of this machine that the lab's tiers need, and their installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.paths import LabError
from lab.progress import step


@dataclass(frozen=True)
class Need:
    """A Debian package, and the program or file that shows that it is there."""

    package: str
    proof: str


_EITHER = (
    Need("mmdebstrap", "mmdebstrap"),
    Need("debian-archive-keyring", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    Need("arch-test", "arch-test"),
    Need("iproute2", "ip"),
    Need("openssh-client", "ssh-keygen"),
    Need("slirp4netns", "slirp4netns"),
    Need("util-linux", "unshare"),
    Need("mount", "mount"),
)
CONTAINER_TIER = (*_EITHER, Need("systemd-container", "systemd-nspawn"))
MACHINE_TIER = (
    *_EITHER,
    Need("qemu-system-x86", "qemu-system-x86_64"),
    Need("qemu-utils", "qemu-img"),
    Need("acpica-tools", "iasl"),
    Need("e2fsprogs", "mke2fs"),
    Need("zstd", "zstd"),
)
#: What the arm64 machine needs besides, to be made and to be run.
ARM64_MACHINE = (
    Need("qemu-system-arm", "qemu-system-aarch64"),
    Need("qemu-user-static", "/usr/lib/binfmt.d/qemu-aarch64.conf"),
    Need("device-tree-compiler", "dtc"),
    Need("dosfstools", "mkfs.vfat"),
    Need("mtools", "mcopy"),
)
# Programs of the system administrator are not in every user's PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def missing(needs: tuple[Need, ...]) -> list[str]:
    """The packages whose proof is absent from this machine."""
    return [need.package for need in needs if not _present(need.proof)]


def _present(proof: str) -> bool:
    return Path(proof).exists() if proof.startswith("/") else bool(shutil.which(proof, path=_PATH))


def ensure(needs: tuple[Need, ...]) -> None:
    """Install what is missing by apt-get; raises LabError where there is no apt-get."""
    packages = missing(needs)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise LabError(
            "the lab needs a Debian or Ubuntu machine (there is no apt-get here); on another "
            f"distribution install the equivalents of: {' '.join(packages)}"
        )
    with step(f"installing packages by apt-get: {' '.join(packages)}"):
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *packages)
    if still := missing(needs):
        raise LabError(
            f"apt-get installed these packages but their programs are not found: {still}"
        )


def _apt(*arguments: str) -> None:
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-1500:]}")
