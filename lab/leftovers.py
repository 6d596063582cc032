"""Removing a lab completely: what was recorded, and what only its name gives away after a crash."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from lab import cgroup, network, processes, sysctl
from lab.looks import CLASSES
from lab.paths import Lab
from lab.system import quiet
from lab.tiers import TIERS


def find_hosts(lab: Lab) -> list[str]:
    """Names of this lab's hosts of which anything is left on this machine."""
    pattern = re.compile(rf"{lab.name}-({'|'.join(CLASSES)})(-\d+)?")
    directories = [path.name for path in lab.hosts_dir.glob("*")]
    seen = {*directories, *network.namespaces(), *cgroup.hosts()}
    return sorted(name for name in seen if pattern.fullmatch(name))


def remove(lab: Lab) -> None:
    """End this lab's processes and remove its groups, network, mounts and files. Idempotent."""
    for name in find_hosts(lab):
        cgroup.of_host(name).kill()
        # A supervisor that was killed before it entered its group.
        for tier in TIERS.values():
            processes.kill_all(processes.find(tier.supervisor, str(lab.host_dir(name))))
        network.remove_namespace(name)
        cgroup.of_host(name).remove()
    for interface in network.interfaces(lab.name):
        quiet(["ip", "link", "delete", interface])
    processes.kill_all(processes.find("lab.hub", lab.name))
    sysctl.restore(lab)
    for mount in _mounts_below(lab.hosts_dir):
        quiet(["umount", "--lazy", str(mount)])
    shutil.rmtree(lab.hosts_dir, ignore_errors=True)
    key = lab.ssh_key
    for file in (
        lab.fleet_file,
        lab.known_hosts,
        lab.api_key,
        lab.api_keys,
        key,
        key.with_suffix(".pub"),
        lab.state / "hub.log",
    ):
        file.unlink(missing_ok=True)


def _mounts_below(directory: Path) -> list[Path]:
    """Mount points below a directory in this mount namespace, the deepest first."""
    mounts = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((m for m in mounts if m.is_relative_to(directory)), reverse=True)
