"""A machine that was booted once, stopped, and put into the cache: its memory and its disk."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.debian import only_one
from lab.machine import accel, qemu
from lab.machine.guest import Channel
from lab.machine.look import Look
from lab.machine.qmp import Qmp
from lab.paths import Lab, LabError
from lab.progress import step

_COLD_BOOT_TIMEOUT_S = 600.0
_SAVE_TIMEOUT_S = 300.0
_DISK = "disk.qcow2"
_MEMORY = "memory.zst"


@dataclass(frozen=True)
class Frozen:
    """What hosts of a class are resumed from. accelerator: what it must be resumed under."""

    directory: Path
    accelerator: str

    @property
    def disk(self) -> Path:
        return self.directory / _DISK

    @property
    def memory(self) -> Path:
        return self.directory / _MEMORY


def ensure(lab: Lab, look: Look) -> Frozen:
    """The frozen machine of a class, booted and frozen first if the cache has none."""
    disk = look.image(lab)
    with only_one(lab.images / f"lock-frozen-{look.hardware}"):
        accelerator = accel.choose(lab, look, disk)
        directory = lab.images / f"frozen-{look.hardware}-{_digest(look, disk, accelerator)}"
        frozen = Frozen(directory, accelerator)
        if not directory.is_dir():
            with step(f"first boot of the {look.hardware} under {accelerator} (minutes, once)"):
                _freeze(look, disk, frozen)
    return frozen


def _digest(look: Look, disk: Path, accelerator: str) -> str:
    """Of all that must be the same where it is resumed."""
    with tempfile.TemporaryDirectory() as scratch:
        look.prepare(Path(scratch))
        made = [(f.name, f.read_bytes().hex()) for f in sorted(Path(scratch).iterdir())]
    command = qemu.command(look, "name", accelerator)
    under = accel.processor() if accelerator == "kvm" else ""
    parts = [command, made, disk.name, qemu.version(look.emulator), under]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _freeze(look: Look, disk: Path, frozen: Frozen) -> None:
    with first_boot(look, disk, frozen.accelerator) as machine:
        machine.await_ready(_COLD_BOOT_TIMEOUT_S)
        machine.freeze()
        machine.directory.joinpath(qemu.DISK).rename(machine.directory / _DISK)
        kept = Path(tempfile.mkdtemp(dir=frozen.directory.parent, prefix="building-"))
        for name in (_DISK, _MEMORY, qemu.CONSOLE):
            (machine.directory / name).rename(kept / name)
        kept.chmod(0o755)
        kept.rename(frozen.directory)


def thaw(monitor: Qmp, frozen: Frozen, timeout_s: float) -> None:
    """Load the memory into a machine that waits for it, and let it go on."""
    source = shlex.quote(str(frozen.memory))
    monitor.run("migrate-incoming", uri=f"exec:zstd -q -d -c {source}")
    end = time.monotonic() + timeout_s
    while (state := monitor.run("query-status"))["status"] == "inmigrate":
        if time.monotonic() > end:
            raise LabError(f"{frozen.memory} is not loaded after {timeout_s:.0f} s")
        time.sleep(0.02)
    if state["status"] != "running":
        monitor.run("cont")


@dataclass(frozen=True)
class FirstBoot:
    """A machine in its first boot, without a network."""

    directory: Path
    process: subprocess.Popen[bytes]

    def alive(self) -> None:
        qemu.require_alive(self.process, self.directory)

    def await_ready(self, timeout_s: float) -> None:
        """Wait until it has booted; raises LabError if it takes longer or ends."""
        with Channel(self.directory, self.alive) as channel:
            channel.await_ready(timeout_s)

    def freeze(self) -> None:
        """Stop it and write its memory beside its disk; it is gone afterwards."""
        with Qmp(self.directory / qemu.MONITOR, self.alive) as monitor:
            monitor.run("stop")
            monitor.run("migrate-set-parameters", **{"max-bandwidth": 10**10})
            target = shlex.quote(str(self.directory / _MEMORY))
            monitor.run("migrate", uri=f"exec:zstd -q -3 -T0 -o {target}")
            end = time.monotonic() + _SAVE_TIMEOUT_S
            while (state := monitor.run("query-migrate"))["status"] != "completed":
                if state["status"] == "failed" or time.monotonic() > end:
                    raise LabError(f"the machine's memory cannot be saved: {state}")
                time.sleep(0.1)
            monitor.run("quit")
        self.process.wait()


@contextmanager
def first_boot(look: Look, disk: Path, accelerator: str) -> Iterator[FirstBoot]:
    """A machine on a fresh overlay of a disk, in a scratch directory; ended and removed after."""
    directory = Path(tempfile.mkdtemp(dir=disk.parent, prefix="building-"))
    try:
        look.prepare(directory)
        qemu.overlay(directory / qemu.DISK, disk)
        extra = look.boot_arguments(directory, directory / qemu.DISK)
        name = f"first-boot-{look.hardware}"
        words = qemu.command(look, name, accelerator, extra, reachable=False)
        process = qemu.start(words, directory, None)
        try:
            yield FirstBoot(directory, process)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
