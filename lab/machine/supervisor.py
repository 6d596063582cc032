"""Keeps one machine powered on: `python -m lab.machine.supervisor HOST_DIRECTORY`.

The first time it resumes the class's frozen machine and tells it who it is; after that it boots the
host's own disk. It ends when the machine powers itself off; a power cut is a kill from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from lab import cgroup
from lab.machine import frozen, qemu
from lab.machine.guest import Channel, Identity
from lab.machine.looks import MACHINES
from lab.machine.qmp import Qmp
from lab.machine.spec import MachineSpec
from lab.paths import LabError
from lab.supervisor import log, way_out

_IDENTITY_TIMEOUT_S = 120.0
_RESUME_TIMEOUT_S = 120.0
# There once the disk is this host's own.
_NAMED = "named"


def supervise(directory: Path) -> None:
    """Run the machine of this directory until it powers off; raises LabError if it cannot."""
    spec = MachineSpec.load(directory)
    for file in cgroup.of_host(spec.name).join_files("lab"):
        file.write_text(str(os.getpid()))
    outside = way_out(spec.link, directory)
    try:
        machine = Machine(spec, directory)
        if not (directory / _NAMED).exists():
            log("resuming")
            machine.resume()
        else:
            log("booting")
            machine.boot()
        while machine.wait() == "guest-reset" and not machine.look.reboots_itself:
            log("booting again")
            machine.boot()
    finally:
        if outside is not None:
            outside.kill()
            outside.wait()


class Machine:
    """The host whose files are in one directory."""

    def __init__(self, spec: MachineSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self.look = MACHINES[spec.hardware]
        self._process: subprocess.Popen[bytes] | None = None

    def resume(self) -> None:
        """Go on from the frozen machine, as this host. Whatever was on its disk is gone."""
        source = frozen.Frozen(Path(self.spec.frozen), self.spec.accelerator)
        disk = self.directory / qemu.DISK
        disk.unlink(missing_ok=True)
        self.look.prepare(self.directory)
        qemu.overlay(disk, source.disk)
        self._start("-incoming", "defer")
        with Qmp(self.directory / qemu.MONITOR, self._alive) as monitor:
            frozen.thaw(monitor, source, _RESUME_TIMEOUT_S)
        with Channel(self.directory, self._alive) as channel:
            channel.tell(self._identity(), _IDENTITY_TIMEOUT_S)
        (self.directory / _NAMED).touch()
        log("resumed, and told its name")

    def boot(self) -> None:
        """Power on: the machine boots from its disk."""
        self._start()

    def wait(self) -> str:
        """Wait until QEMU ends; returns its word for why (guest-shutdown, guest-reset, …)."""
        assert self._process is not None
        reason = "unknown"
        with Qmp(self.directory / qemu.MONITOR, self._alive) as monitor:
            for event in monitor.wait_events():
                if event["event"] in {"RESET", "SHUTDOWN"}:
                    reason = event["data"]["reason"]
                    log(f"{event['event'].lower()}: {reason}")
        code = self._process.wait()
        log(f"QEMU ended with {code} ({reason})")
        return reason

    def _start(self, *more: str) -> None:
        extra = [*self.look.boot_arguments(self.directory, self.directory / qemu.DISK), *more]
        if not self.look.reboots_itself:
            extra.append("-no-reboot")
        words = qemu.command(self.look, self.spec.name, self.spec.accelerator, extra)
        self._process = qemu.start(words, self.directory, self.spec.link.namespace)

    def _alive(self) -> None:
        assert self._process is not None
        qemu.require_alive(self._process, self.directory)

    def _identity(self) -> Identity:
        key = self.directory / "ssh_host_ed25519_key"
        return Identity(
            name=self.spec.name,
            machine_id=uuid.uuid4().hex,
            host_key=key.read_text(),
            host_key_public=key.with_suffix(".pub").read_text(),
            authorized_key=self.spec.authorized_key,
        )


if __name__ == "__main__":
    try:
        supervise(Path(sys.argv[1]))
    except (LabError, OSError) as error:
        log(f"cannot run this machine: {error}")
        sys.exit(1)
