"""Hosts behind real SSH servers that go down when they are told to reboot, and come back."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.device import Device
from tests.deploy.rollout import GATE, PASSED
from tests.deploy.ssh_server import SshServer, ssh_server

DOWN_S = 0.3
SILENT = json.dumps({"ok": False, "reason": "llama-server is failed", "journal": ["no model"]})


@dataclass
class Machine:
    """One host: what it answers before and after a boot. `log` is shared by a fleet."""

    name: str
    server: SshServer
    device: Device
    next_cmdline: str
    """What /proc/cmdline holds after a boot."""
    log: list[tuple[str, str]]
    comes_back: bool = True
    serves: bool = True
    """Whether it answers the gate after a boot."""
    slow_start: int = 0
    """So many questions after a boot find its units not yet started."""
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    cmdline: str = ""
    boots: int = 0
    _askpass: int = 0

    def __post_init__(self) -> None:
        self.cmdline = self.cmdline or self.device.sections["cmdline"]
        self.server.answer = self.answer

    def answer(self, command: str) -> tuple[int, str]:
        """What a command gives on this host."""
        if "pyinfra-sudo-askpass" in command and "mktemp" in command:
            self._askpass += 1
            return 0, f"/tmp/askpass-{self.boots}-{self._askpass}\n"
        if "SUDO_ASKPASS" in command and f"/askpass-{self.boots}-" not in command:
            return 1, ""  # that /tmp is gone
        if "say unreadable" in command:
            return 0, self.device.having(cmdline=self.cmdline, boot_id=self.boot_id).text
        if "edge-host activate" in command:
            return 0, PASSED + "\n"
        if "edge-host probe" in command:
            return self._probe()
        if "systemctl reboot" in command:
            threading.Thread(target=self._reboot, daemon=True).start()
            return 0, ""
        if "is-system-running" in command:
            state = "starting" if self.slow_start else "running"
            return 0, f"{self.boot_id}\n{state}\n{self.cmdline}\n"
        return 0, ""

    def _probe(self) -> tuple[int, str]:
        if self.boots and self.slow_start:
            self.slow_start -= 1
            return 1, json.dumps({"ok": False, "reason": "llama-server is inactive"}) + "\n"
        if self.boots and not self.serves:
            return 1, SILENT + "\n"
        if self.boots:
            self.log.append((self.name, "green"))
        return 0, json.dumps({"ok": True, "serving": True, "gate": GATE}) + "\n"

    def _reboot(self) -> None:
        self.log.append((self.name, "down"))
        self.server.go_down()
        if not self.comes_back:
            return
        time.sleep(DOWN_S)
        self.boots += 1
        self.boot_id, self.cmdline = str(uuid.uuid4()), self.next_cmdline
        self.log.append((self.name, "up"))
        self.server.up = True


@contextmanager
def machine(
    folder: Path, name: str, device: Device, next_cmdline: str, log: list[tuple[str, str]],
    **how: Any,
) -> Iterator[tuple[Machine, dict[str, Any]]]:  # fmt: skip
    """A host, and the data by which pyinfra reaches it."""
    folder = folder / name
    folder.mkdir()
    with ssh_server(folder) as server:
        data = {
            "ssh_hostname": "127.0.0.1", "ssh_port": server.port, "ssh_user": "root",
            "ssh_key": str(server.client_key), "ssh_allow_agent": False,
            "ssh_look_for_keys": False, "ssh_config_file": "/dev/null",
            "ssh_strict_host_key_checking": "yes",
            "ssh_known_hosts_file": str(server.known_hosts(folder)),
        }  # fmt: skip
        yield Machine(name, server, device, next_cmdline, log, **how), data
