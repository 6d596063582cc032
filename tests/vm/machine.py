"""One machine of a test: asking it, its power, its boots, and what its "hardware" was told."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import fleet
from lab.machine.x86 import read_pstates
from tests.lab.own_lab import OwnLab
from tests.lab.rollout import Run, data, deploy


@dataclass(frozen=True)
class VmHost:
    """The machine of a class in a test's lab."""

    own: OwnLab
    hardware: str

    @property
    def host(self) -> fleet.Host:
        """As it is recorded now."""
        return self.own.host(self.hardware)

    @property
    def directory(self) -> Path:
        """What the machine consists of outside: disk, console.log, supervisor.log."""
        return self.own.lab.host_dir(self.host.name)

    def ask(self, script: str) -> str:
        """The output of a shell script that must succeed, run as the login user."""
        return self.own.ask(self.host, script)

    def root(self, script: str) -> str:
        """The same as root."""
        return self.own.ask(self.host, f"sudo sh -eu <<'END-OF-SCRIPT'\n{script}\nEND-OF-SCRIPT")

    def ssh(self, script: str) -> subprocess.CompletedProcess[str]:
        """A script that may fail."""
        return self.own.ssh(self.host, script)

    def cmdline(self) -> list[str]:
        """The words of the kernel's command line in this boot."""
        return self.ask("cat /proc/cmdline").split()

    def boot_id(self) -> str:
        return fleet.boot_id(self.own.lab, self.host)

    def await_boot(self, *, after: str = "") -> None:
        """Wait for a boot other than `after` to be over."""
        fleet.await_boot(self.own.lab, self.host, after=after)

    def reboot(self) -> None:
        """Reboot from inside and wait for the end of the next boot."""
        before = self.boot_id()
        self.ssh("sudo systemctl reboot")
        self.await_boot(after=before)

    def power_off(self) -> None:
        """As if unplugged: at once, nothing inside is told."""
        fleet.power_off(self.own.lab, self.host.name)

    def power_on(self) -> None:
        """Boot from the disk; returns when it has booted."""
        fleet.power_on(self.own.lab, self.host.name)

    def power_cut(self) -> None:
        fleet.power_cut(self.own.lab, self.host.name)

    def pstates(self) -> list[bytes]:
        """The bytes that each processor's P-state control received since the power came on."""
        return read_pstates(self.directory)

    def files(self, *directories: str) -> dict[str, str]:
        """Path to sha256 (links: to what) of all below directories: equal means byte for byte."""
        listing = self.root(
            f"""
            find {" ".join(directories)} -xdev -type f -exec sha256sum {{}} +
            find {" ".join(directories)} -xdev -type l -printf '%l  %p\\n'
            """
        )
        pairs = (line.split("  ", 1) for line in listing.splitlines())
        return {path: what for what, path in pairs}

    def rollout(self, *arguments: str, **settings: object) -> Run:
        """deploy.py on this machine alone, with these settings; see tests/lab/rollout.py."""
        return deploy(self.own, "--limit", self.host.name, *arguments, *data(**settings))

    def manifest(self) -> dict[str, object]:
        """What was last good, as the host keeps it."""
        found = json.loads(self.root("cat /var/lib/edge-llm/manifest.json"))
        assert isinstance(found, dict)
        return found
