"""Moments of a rollout at which a machine's power is cut, and how to be there in time."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from lab import fleet
from tests.vm.machine import VmHost

# In front of the system's programs in sudo's own search path.
_IN_FRONT = "/usr/local/bin"
_SPRUNG = "/run/trap-sprung"


@dataclass(frozen=True)
class Cut:
    """A moment: `when` is a shell condition, true once it has come.

    Moments that pass too quickly to be seen are held by `trap`: a program, and a part of its
    arguments; called with it, the program does nothing and waits for the power to go.
    """

    name: str
    when: str = f"[ -e {_SPRUNG} ]"
    trap: tuple[str, str] | None = None

    def __str__(self) -> str:
        return self.name


GRUB_CUTS = (
    Cut("in the command line's file", trap=("mv", "99-edge-llm.cfg")),
    Cut("in grub-mkconfig", "set -- /boot/grub/grub.cfg?*; [ -s $1 ]"),
    Cut("before grub.cfg is flushed", trap=("sync", "/boot/grub/grub.cfg")),
)
PI_CUTS = (
    Cut("before cmdline.txt is flushed", trap=("sync", "cmdline.txt")),
    Cut("before cmdline.txt is renamed", trap=("mv", "cmdline.txt")),
)
STEP_CUTS = (
    Cut("preflight: the account", "id -u edge-llm >/dev/null 2>&1"),
    Cut("tuning: its files", "[ -e /etc/edge-llm/tuning.conf ]"),
    Cut("model: a part of it", "set -- /opt/edge-llm/models/*/*.part; [ -s $1 ]"),
    Cut("engine: unpacking it", "set -- /opt/edge-llm/engine/releases/?*; [ -d $1 ]"),
    Cut("proxy: making its environment", "set -- /opt/edge-llm/proxy/releases/*/venv; [ -d $1 ]"),
    Cut("services: their units", "[ -e /etc/systemd/system/llama-server.service ]"),
    Cut("gate: the engine loads", "pgrep -x llama-server >/dev/null"),
)


def set_trap(machine: VmHost, cut: Cut) -> None:
    if cut.trap is None:
        return
    program, word = cut.trap
    machine.ask(
        f"sudo tee {_IN_FRONT}/{program} >/dev/null <<'TRAP'\n"
        f'#!/bin/sh\ncase "$*" in *{word}*) : > {_SPRUNG}; exec sleep 600 ;; esac\n'
        f'exec /usr/bin/{program} "$@"\nTRAP\n'
        f"sudo chmod 755 {_IN_FRONT}/{program}; sudo sync -f {_IN_FRONT}",
    )


def take_trap(machine: VmHost, cut: Cut) -> None:
    if cut.trap is not None:
        machine.ask(f"sudo rm {_IN_FRONT}/{cut.trap[0]}")


def watch(machine: VmHost, cut: Cut) -> subprocess.Popen[str]:
    """A process that ends when the moment has come."""
    script = f"until ({cut.when}); do sleep 0.02; done"
    words = [*fleet.ssh_command(machine.own.lab, machine.host), "sudo", "sh", "-s"]
    watcher = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    assert watcher.stdin is not None
    watcher.stdin.write(script + "\n")
    watcher.stdin.close()
    return watcher
