"""Running the rollout on a test's own lab, as an operator does, and asking what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from edge.fleet import CHECKOUT
from lab import fleet
from tests.lab.own_lab import OwnLab

PYINFRA = [sys.executable, "-m", "pyinfra"]


@dataclass(frozen=True)
class Run:
    """A run of deploy.py that has ended."""

    code: int
    results: dict[str, Any]
    log: str

    @property
    def changed(self) -> dict[str, list[str]]:
        """Operations that changed something, and on which hosts."""
        operations = self.results.get("operations", [])
        return {op["name"].split(" (")[0]: op["success"] for op in operations if op["success"]}


def command(*arguments: str) -> list[str]:
    return [*PYINFRA, "--json", "-y", *arguments, "inventory/lab.py", "deploy.py"]


def environment(lab: OwnLab) -> dict[str, str]:
    own = {"EDGE_LAB_NAME": lab.lab.name, "EDGE_LAB_STATE": str(lab.lab.state)}
    return {**os.environ, **own}


def begin(lab: OwnLab, *arguments: str) -> subprocess.Popen[str]:
    """A run of deploy.py that goes on by itself; what it prints is kept for `communicate`."""
    return subprocess.Popen(
        command(*arguments),
        cwd=CHECKOUT,
        env=environment(lab),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def deploy(lab: OwnLab, *arguments: str) -> Run:
    with begin(lab, *arguments) as run:
        output, log = run.communicate()
    return Run(run.returncode, json.loads(output)["results"] if output.strip() else {}, log)


def data(**settings: object) -> list[str]:
    """`--data` arguments: settings for this run only."""
    return [part for k, v in settings.items() for part in ("--data", f"{k}={json.dumps(v)}")]


def main_pid(lab: OwnLab, hardware: str, unit: str) -> str:
    pid = lab.ask(lab.host(hardware), f"systemctl show -P MainPID {unit}")
    assert pid != "0", f"{unit} does not run"
    return pid


def hold_lock(lab: OwnLab, host: fleet.Host) -> subprocess.Popen[str]:
    """Hold the agent's lock on a host, as a run that hangs would; returns once it is held."""
    script = (
        "mkdir -p /run/edge-llm; exec flock /run/edge-llm/lock sh -c 'echo held; exec sleep 600'"
    )
    holder = subprocess.Popen(
        [*fleet.ssh_command(lab.lab, host), "sudo", "sh", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write(script + "\n")
    holder.stdin.close()
    assert holder.stdout.readline() == "held\n"
    return holder


def pids(lab: OwnLab) -> dict[tuple[str, str], str]:
    """The main process of each service of each host."""
    return {
        (host.hardware, unit): main_pid(lab, host.hardware, unit)
        for host in lab.fleet.hosts
        for unit in ("llama-server", "chat-proxy")
    }
