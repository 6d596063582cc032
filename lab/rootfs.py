"""The base tree of the hosts: a minimal Debian server, built once and shared by overlays."""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import apt_sources
from lab.paths import Lab, LabError
from lab.progress import step
from lab.system import run

SUITE = "trixie"
# What a minimal Debian server has. libgomp1 is here because the engine needs it and a demo should
# not wait for apt; curl and python3 because the rollout asks a host for both.
PACKAGES = (
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
# Nobody reads manuals in a lab host; they are a fifth of the tree.
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
_HOST_CAS = Path("/usr/local/share/ca-certificates")
# Where the supervisor's boot files for a host appear inside it (see lab.container).
BOOT_MOUNT = "/usr/lib/lab-host"

_CUSTOMIZE = f"""\
set -eu
mkdir -p {BOOT_MOUNT}
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


def architecture() -> str:
    """This machine's architecture, as Debian calls it."""
    return run(["dpkg", "--print-architecture"]).strip()


def ensure(lab: Lab) -> Path:
    """The image's tree, built first if this recipe has not been built on this machine."""
    command = _mmdebstrap()
    cas = sorted(_HOST_CAS.glob("**/*.crt"))
    image = lab.images / f"{SUITE}-{architecture()}-{_digest(command, cas)}"
    if image.is_dir():
        return image
    lab.images.mkdir(parents=True, exist_ok=True)
    with _only_one(lab.images / "lock"):
        if not image.is_dir():
            with step(f"building the Debian {SUITE} image (about a minute, once)"):
                _build(command, cas, image)
    return image


def _mmdebstrap() -> list[str]:
    options = [
        'APT::Install-Recommends "false";',
        'Acquire::Languages "none";',
        *apt_sources.carried_settings(),
    ]
    return [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        *(f"--aptopt={option}" for option in options),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
    ]


def _digest(command: list[str], cas: list[Path]) -> str:
    """Of everything that decides what the tree holds; other kernels' trees differ by machine()."""
    recipe = json.dumps([command, _sources(), _CUSTOMIZE, platform.machine()])
    digest = hashlib.sha256(recipe.encode())
    for ca in cas:
        digest.update(ca.read_bytes())
    return digest.hexdigest()[:12]


def _sources() -> list[str]:
    return apt_sources.debian_lines(SUITE, apt_sources.read())


def _build(command: list[str], cas: list[Path], image: Path) -> None:
    # A directory of its own, renamed when complete: a killed build leaves nothing that is used.
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="building-") as scratch:
        # dpkg needs every parent directory to be searchable by its own users (apt's _apt).
        Path(scratch).chmod(0o755)
        script = Path(scratch) / "customize.sh"
        script.write_text(_CUSTOMIZE)
        authorities = Path(scratch) / "cas"
        authorities.mkdir()
        for ca in cas:
            shutil.copy(ca, authorities / ca.name)
        tree = Path(scratch) / "tree"
        run(
            [
                *command,
                f"--customize-hook=cp {authorities}/*.crt $1{_HOST_CAS}/ 2>/dev/null || true",
                f'--customize-hook=chroot "$1" sh -s < {script}',
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
        tree.rename(image)


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Two labs that start at once must not build the same image twice."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
