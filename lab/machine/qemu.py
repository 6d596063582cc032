"""QEMU's command line for a host, and the process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.machine.look import Look
from lab.paths import LabError
from lab.power import last_words
from lab.system import DIES_WITH_PARENT, run

# All in the host's directory, in which QEMU runs: its options take names without their path.
DISK = "disk.qcow2"
MONITOR = "qmp.sock"
CHANNEL = "lab.sock"
CONSOLE = "console.log"
LOG = "qemu.log"
#: What of a machine is reached from outside: SSH and the chat.
PORTS = (22, 8000)
#: The port of the lab's channel as the machine sees it: /dev/virtio-ports/NAME.
CHANNEL_NAME = "edgelab"
# The machine's own network, the same in each; 10.0.2.0/24 is the one around it (lab.network).
NETWORK = "10.0.3.0/24"
GATEWAY = "10.0.3.2"
ADDRESS = "10.0.3.15"
# MiB of translated code. QEMU's default is a gigabyte.
_TRANSLATIONS_MIB = 256


def command(
    look: Look,
    name: str,
    accelerator: str,
    extra: Sequence[str] = (),
    *,
    reachable: bool = True,
) -> list[str]:
    """The words that start a machine, in its directory. accelerator: tcg or kvm.

    reachable: its ports are to be had at every address of the network namespace that it is started
    in. Else it reaches nothing and nothing reaches it.
    """
    emulated = f"tcg,thread={look.emulation},tb-size={_TRANSLATIONS_MIB}"
    accel = emulated if accelerator == "tcg" else accelerator
    forwards = "".join(f",hostfwd=tcp::{port}-{ADDRESS}:{port}" for port in PORTS)
    ways = forwards if reachable else ",restrict=on"
    return [
        look.emulator,
        *("-name", f"guest={name}"),
        *("-accel", accel),
        "-nodefaults",
        "-no-user-config",
        *("-display", "none"),
        *look.arguments(),
        *("-rtc", "base=utc"),
        *("-chardev", f"file,id=console,path={CONSOLE},append=on"),
        *("-serial", "chardev:console"),
        *("-qmp", f"unix:{MONITOR},server=on,wait=off"),
        # What the machine flushed is in the file when QEMU is killed; only this machine's own
        # crash would lose it, and with it the lab.
        *("-drive", f"file={DISK},if=virtio,format=qcow2,cache=unsafe,discard=unmap"),
        *("-object", "rng-random,id=random,filename=/dev/urandom"),
        *("-device", "virtio-rng-pci,rng=random"),
        *("-netdev", f"user,id=net,net={NETWORK},host={GATEWAY}{ways}"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=lab,path={CHANNEL},server=on,wait=off"),
        *("-device", f"virtserialport,chardev=lab,name={CHANNEL_NAME}"),
        *extra,
    ]


def start(words: Sequence[str], directory: Path, namespace: str | None) -> subprocess.Popen[bytes]:
    """Start QEMU in a directory and (unless None) a named network namespace; it dies with us."""
    enter = ["nsenter", f"--net=/run/netns/{namespace}", "--"] if namespace else []
    for stale in (MONITOR, CHANNEL):
        (directory / stale).unlink(missing_ok=True)
    with (directory / LOG).open("ab") as log:
        return subprocess.Popen(
            [*DIES_WITH_PARENT, *enter, *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def require_alive(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Raise LabError with QEMU's words if it has ended."""
    if process.poll() is not None:
        words = last_words(directory / LOG, directory / CONSOLE)
        raise LabError(f"QEMU ended with {process.returncode}: {words}")


def overlay(disk: Path, below: Path) -> None:
    """Make a disk that holds only what differs from the one below, which never changes."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(below), str(disk)])


def version(program: str) -> str:
    """What a QEMU program says of itself, distribution's revision included."""
    return run([program, "--version"]).splitlines()[0]
