"""One host as a systemd-nspawn container: its disk (an overlay), its boot files, its start."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import cgroup, looks
from lab.debian import LAB_DIRECTORY as BOOT_MOUNT
from lab.network import Link
from lab.paths import LabError
from lab.system import DIES_WITH_PARENT, run, write

# The program that runs as the host's first process, before systemd: what firmware and kernel
# would have done. /proc/cmdline and the parts of /sys are laid over the machine's own.
_FIRMWARE = f"""\
#!/bin/sh
set -e
boot={BOOT_MOUNT}
mount --bind $boot/cmdline /proc/cmdline
for part in class firmware; do
  layers=lowerdir=$boot/sys/$part:/sys/$part
  [ ! -d /sys/$part ] || mount -t overlay -o ro,$layers overlay /sys/$part
done
# systemd-nspawn gives version 1 controllers read-only; this host has a group of its own.
while read -r _ target type options _; do
  case "$type $target $options" in
    "cgroup /sys/fs/cgroup/cpuset "*) ;;
    "cgroup /sys/fs/cgroup/devices "*) ;;
    "cgroup /sys/fs/cgroup/"*" ro,"*) mount -o remount,bind,rw "$target" ;;
  esac
done < /proc/self/mounts
exec /usr/lib/systemd/systemd
"""


@dataclass(frozen=True)
class HostSpec:
    """What a host is from its making to its removal. authorized_key is one public key line."""

    name: str
    hardware: str
    image: str
    link: Link
    authorized_key: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def spec_from_json(data: dict[str, object]) -> HostSpec:
    """The HostSpec that as_json() gave."""
    link = data.pop("link")
    assert isinstance(link, dict)
    return HostSpec(**data, link=Link(**link))  # type: ignore[arg-type]


class Container:
    """The host whose files are in one directory. Use it in a mount namespace of its own."""

    def __init__(self, spec: HostSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self.root = directory / "root"
        self.boot_files = directory / "boot"

    def mount_disk(self) -> None:
        """Mount the host's disk: the shared image below, what the host writes above."""
        disk = self.directory / "disk"
        for path in (self.root, disk / "upper", disk / "work"):
            path.mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={self.spec.image},upperdir={disk}/upper,workdir={disk}/work"
        try:
            run(["mount", "-t", "overlay", "-o", layers, self.spec.name, str(self.root)])
        except LabError as error:
            raise LabError(
                f"{error}\nthe host's disk needs a file system that overlays can use (ext4, xfs, "
                f"btrfs, tmpfs) at {self.directory}; EDGE_LAB_STATE moves the lab to another one"
            ) from error

    def provision(self) -> None:
        """Make the shared image this host, once: name, keys, boot loader, and its class's files."""
        done = self.directory / "provisioned"
        if done.exists():
            return
        etc = self.root / "etc"
        write(etc / "hostname", f"{self.spec.name}\n")
        write(etc / "hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{self.spec.name}\n")
        write(etc / "machine-id", f"{uuid.uuid4().hex}\n", 0o444)
        for suffix, mode in (("", 0o600), (".pub", 0o644)):
            name = f"ssh_host_ed25519_key{suffix}"
            write(etc / "ssh" / name, (self.directory / name).read_text(), mode)
        keys = self.root / "home/edge/.ssh/authorized_keys"
        write(keys, f"{self.spec.authorized_key}\n")
        look = looks.LOOKS[self.spec.hardware]
        for path, text in look.disk.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, text, 0o755 if "bin/" in path else 0o644)
        if look.has_grub:
            (self.root / looks.GRUB_CFG).parent.mkdir(parents=True, exist_ok=True)
            run(["chroot", str(self.root), "/usr/sbin/update-grub"])
        done.touch()

    def write_boot_files(self) -> str:
        """What firmware and boot loader hand over at this boot; returns the kernel command line."""
        cmdline = looks.kernel_cmdline(self.root)
        self.boot_files.mkdir(exist_ok=True)
        write(self.boot_files / "cmdline", f"{cmdline}\n")
        write(self.boot_files / "firmware", _FIRMWARE, 0o755)
        for part in ("class/dmi", "firmware/devicetree"):
            directory = self.boot_files / "sys" / part
            directory.mkdir(parents=True, exist_ok=True)
            # Opaque: the machine's own DMI or device tree must not shine through.
            os.setxattr(directory, "trusted.overlay.opaque", b"y")
        for path, text in looks.LOOKS[self.spec.hardware].sysfs.items():
            file = self.boot_files / "sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, text, 0o444)
        return cmdline

    def boot(self, groups: cgroup.HostCgroup) -> subprocess.Popen[bytes]:
        """Start the host; the process ends with 133 when it asks to be booted again."""
        groups.clear_guest()
        files = groups.join_files("guest")
        enter = "".join(f"echo $$ > {shlex.quote(str(file))} && " for file in files)
        # As a host just booted would have them: uptime counts from now.
        clocks = [f"--{clock}=-{int(time.clock_gettime(number))}" for clock, number in _CLOCKS]
        unshare = ["unshare", "--time", *clocks] if _HAS_TIME_NAMESPACES else ["unshare"]
        # Only systemd-nspawn may be in the guest's group: version 2 groups that hand controllers
        # on hold no processes, and it clears its own out of the way.
        command = [
            *DIES_WITH_PARENT,
            *unshare,
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            f'{enter}exec "$@"',
            "sh",
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.root}",
            f"--machine={self.spec.name}",
            "--register=no",
            "--keep-unit",
            f"--network-namespace-path=/run/netns/{self.spec.link.namespace}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--kill-signal=SIGRTMIN+3",
            "--console=pipe",
            f"--bind-ro={self.boot_files}:{BOOT_MOUNT}",
            f"{BOOT_MOUNT}/firmware",
        ]
        with (self.directory / "console.log").open("ab") as console:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=_guest_environment(unified=groups.unified),
            )


_CLOCKS = (("boottime", time.CLOCK_BOOTTIME), ("monotonic", time.CLOCK_MONOTONIC))
_HAS_TIME_NAMESPACES = Path("/proc/self/ns/time").exists()


def _guest_environment(*, unified: bool) -> dict[str, str]:
    # Without --boot, systemd-nspawn does not look into the tree to choose the cgroup layout.
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1" if unified else "0",
    }
