"""A lab of the tests' own, and the questions that tests ask of its hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import cgroup, fleet, leftovers, network, processes
from lab.paths import Lab, cache_root
from lab.tiers import TIERS, Tier


@dataclass(frozen=True)
class OwnLab:
    """A lab and its hosts, with the questions that tests ask of them."""

    lab: Lab

    @property
    def fleet(self) -> fleet.Fleet:
        return fleet.require(self.lab)

    @property
    def headers(self) -> dict[str, str]:
        """What the lab's chats let in."""
        return {"Authorization": f"Bearer {self.lab.api_key.read_text().strip()}"}

    def host(self, hardware: str) -> fleet.Host:
        return next(host for host in self.fleet.hosts if host.hardware == hardware)

    def ssh(self, host: fleet.Host, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script on a host as its user."""
        command = [*fleet.ssh_command(self.lab, host), "sh", "-s"]
        return subprocess.run(command, input=script, capture_output=True, text=True, check=False)

    def ask(self, host: fleet.Host, script: str) -> str:
        """The output of a script that must succeed."""
        done = self.ssh(host, script)
        assert done.returncode == 0, f"{host.name}: {done.stderr}"
        return done.stdout.strip()


def make_lab(name: str, state: Path) -> Lab:
    if os.geteuid() != 0:
        pytest.skip("lab hosts need root (namespaces, mounts, control groups)")
    return Lab(name, state, cache_root() / "lab")


@contextmanager
def lab_up(
    letter: str,
    state: Path,
    hosts: int | Sequence[str] | None = None,
    tier: Tier = TIERS["container"],
) -> Iterator[OwnLab]:
    """A lab with bare hosts, taken down afterwards; `letter` tells labs of one process apart."""
    lab = make_lab(f"{letter}{os.getpid() % 1_000_000}", state)
    try:
        fleet.up(lab, hosts, tier)
        yield OwnLab(lab)
    finally:
        fleet.down(lab)


def remains(lab: Lab) -> list[str]:
    """Everything on this machine that still tells of a lab."""
    found = leftovers.find_hosts(lab) + network.interfaces(lab.name)
    found += [name for name in cgroup.hosts() if name.startswith(f"{lab.name}-")]
    found += [str(pid) for pid in processes.find("lab.hub", lab.name)]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_text() + (process / "mountinfo").read_text()
            told += str((process / "cwd").readlink())
        except (OSError, UnicodeDecodeError):
            continue
        if str(lab.state) in told and process.name != str(os.getpid()):
            found.append(f"process {process.name}: {told[:60]}")
    return found
