"""A Debian tree by mmdebstrap: what containers and machines are made from.

Built from a recipe that also names it: the same recipe on the same machine is built once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import apt_sources
from lab.paths import LabError
from lab.system import run

SUITE = "trixie"
# What a minimal Debian server has. libgomp1 is here because the engine needs it and a demo should
# not wait for apt; curl and python3 because the rollout asks a host for both.
SERVER = (
    "systemd-sysv",
    "dbus",
    "udev",
    "openssh-server",
    "sudo",
    "python3",
    "curl",
    "ca-certificates",
    "iproute2",
    "procps",
    "kmod",
    "libgomp1",
)
# Where the lab's own files are inside a host.
LAB_DIRECTORY = "/usr/lib/lab-host"
# Nobody reads manuals in a lab host; they are a fifth of the tree.
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
_HOST_CAS = Path("/usr/local/share/ca-certificates")

# Run inside the tree by sh: a login, and none of what only costs a lab's hosts time.
SERVER_SETUP = f"""\
set -eu
mkdir -p {LAB_DIRECTORY}
useradd --create-home --shell /bin/bash edge
install -d -m 0700 -o edge -g edge /home/edge/.ssh
echo 'edge ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/edge
chmod 0440 /etc/sudoers.d/edge
# Keys that every host would share are no keys: each host gets its own before its first boot.
rm -f /etc/ssh/ssh_host_*
printf 'UseDNS no\\nPasswordAuthentication no\\n' > /etc/ssh/sshd_config.d/lab.conf
# Timers that would load two cores for all hosts at once, and a console that nobody has.
systemctl mask -q apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \\
  man-db.timer dpkg-db-backup.timer getty@tty1.service console-getty.service
update-ca-certificates > /dev/null 2>&1
rm -f /etc/resolv.conf /etc/machine-id
echo 'nameserver 10.0.2.3' > /etc/resolv.conf
: > /etc/machine-id
"""


@dataclass(frozen=True)
class Recipe:
    """How a tree is made. architecture: Debian's name. setup: sh, run inside when all is there.

    before: sh, run inside before the first package. options: further words for mmdebstrap.
    """

    architecture: str
    packages: tuple[str, ...]
    setup: str
    before: str = ""
    options: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Of everything that decides what the tree holds, this machine's mirror and CAs too."""
        # platform: which programs may run while it is built decides too.
        parts: list[object] = [self._mmdebstrap(), _sources(), self.setup, platform.machine()]
        if self.before:
            parts.append(self.before)
        digest = hashlib.sha256(json.dumps(parts).encode())
        for ca in _authorities():
            digest.update(ca.read_bytes())
        return digest.hexdigest()[:12]

    def _mmdebstrap(self) -> list[str]:
        settings = [
            'APT::Install-Recommends "false";',
            'Acquire::Languages "none";',
            *apt_sources.carried_settings(),
        ]
        foreign = self.architecture != native_architecture()
        return [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            *([f"--architectures={self.architecture}"] if foreign else []),
            f"--include={','.join(self.packages)}",
            *(f"--aptopt={setting}" for setting in settings),
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
            *self.options,
        ]

    def build(self, tree: Path) -> None:
        """Make the tree (a directory that does not exist); scratch files go beside it."""
        scratch = tree.parent
        # dpkg needs every parent directory to be searchable by its own users (apt's _apt).
        scratch.chmod(0o755)
        scripts = {"before": self.before, "setup": self.setup}
        for name, text in scripts.items():
            (scratch / f"{name}.sh").write_text(text)
        authorities = scratch / "cas"
        authorities.mkdir()
        for ca in _authorities():
            shutil.copy(ca, authorities / ca.name)
        before = [f'--extract-hook=chroot "$1" sh -s < {scratch}/before.sh'] if self.before else []
        run(
            [
                *self._mmdebstrap(),
                *before,
                f"--customize-hook=cp {authorities}/*.crt $1{_HOST_CAS}/ 2>/dev/null || true",
                f'--customize-hook=chroot "$1" sh -s < {scratch}/setup.sh',
                SUITE,
                str(tree),
                *_sources(),
            ],
            timeout_s=3600,
        )
        if not (tree / "usr/lib/systemd/systemd").exists():
            raise LabError(
                f"mmdebstrap ended well but {tree} has no systemd; run it by hand to see"
            )


def native_architecture() -> str:
    """This machine's architecture, as Debian calls it."""
    return run(["dpkg", "--print-architecture"]).strip()


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Two labs that start at once must not build the same thing twice."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sources() -> list[str]:
    return apt_sources.debian_lines(SUITE, apt_sources.read())


def _authorities() -> list[Path]:
    return sorted(_HOST_CAS.glob("**/*.crt"))
