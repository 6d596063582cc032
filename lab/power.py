"""Starting a host's supervisor, waiting for the host, and the way into it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from lab import cgroup
from lab.paths import CHECKOUT, Lab, LabError
from lab.processes import Process
from lab.record import SSH_USER, Host
from lab.system import run

_BOOT_TIMEOUT_S = {"container": 300.0, "vm": 900.0}
_LOGIN_TIMEOUT_S = 30.0
# What systemd says of itself before a boot has ended; empty when no login is allowed yet.
_NOT_BOOTED = ("", "offline", "unknown", "initializing", "starting")


def power(lab: Lab, name: str, supervisor: str) -> Process:
    """Start the supervisor (a module) of a host that has no power; returns it, before any boot."""
    directory = lab.host_dir(name)
    log = directory / "supervisor.log"
    python = [sys.executable, "-m", supervisor, str(directory)]
    command = ["unshare", "--mount", "--propagation", "private", *python]
    unit = cgroup.unit_command(name, log, CHECKOUT)
    if unit:
        run([*unit, *command])
        pid = int(
            run(["systemctl", "show", "--property=MainPID", "--value", cgroup.unit_name(name)])
        )
    else:
        pid = detach(command, log)
    process = Process.of(pid)
    if process is None:
        raise LabError(f"{name} ended at once: {last_words(log)}")
    return process


def detach(command: list[str], log: Path, *, owner: tuple[int, int] | None = None) -> int:
    """Start a process that outlives this one, for an owner (uid, gid); returns its pid."""
    user, group = owner or (None, None)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=user,
            group=group,
        ).pid


def await_boot(lab: Lab, host: Host, *, after: str = "") -> str:
    """Wait until a host has booted and lets us in; returns systemd's word for its state.

    after: the boot_id of a boot that does not count, for a host that is about to reboot.
    """
    directory = lab.host_dir(host.name)
    timeout_s = _BOOT_TIMEOUT_S[host.tier]
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not host.powered:
            words = last_words(directory / "supervisor.log", directory / "console.log")
            raise LabError(f"{host.name} does not boot: {words}")
        if answers(host.address, 22):
            boot, state = _system_state(lab, host)
            if state not in _NOT_BOOTED and boot != after:
                return state
        time.sleep(0.1)
    words = last_words(directory / "supervisor.log", directory / "console.log")
    raise LabError(f"{host.name} has not booted in {timeout_s:.0f} s: {words}")


def boot_id(lab: Lab, host: Host) -> str:
    """The boot that a host is in; empty if nobody may log in."""
    return _ask(lab, host, _BOOT_ID).strip()


def _system_state(lab: Lab, host: Host) -> tuple[str, str]:
    """A host's boot_id and systemd's word for its state; empty if nobody may log in yet.

    Asked again and again by the caller: `is-system-running --wait` was seen to miss the end of a
    boot, and then waits for ever.
    """
    said = _ask(lab, host, f"{_BOOT_ID}; systemctl is-system-running").split()
    return (said[0], said[1]) if len(said) == 2 else ("", "")


_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def _ask(lab: Lab, host: Host, script: str) -> str:
    try:
        done = subprocess.run(
            [*ssh_command(lab, host), script],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_LOGIN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def ssh_command(lab: Lab, host: Host) -> list[str]:
    """The ssh command line for a host, with the lab's key and its checked host keys."""
    options = {
        "UserKnownHostsFile": str(lab.known_hosts),
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "LogLevel": "ERROR",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-F", "none", "-i", str(lab.ssh_key), *words, f"{SSH_USER}@{host.address}"]


def answers(address: str, port: int) -> bool:
    """True if something accepts TCP connections there within a second."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def last_words(*logs: Path) -> str:
    """The ends of log files, for an error message."""
    texts = [log.read_text(errors="replace").strip()[-800:] for log in logs if log.exists()]
    return "\n".join(texts) or "it said nothing"
