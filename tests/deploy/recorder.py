"""Runs inside pyinfra's process, loaded by a test's inventory: writes down what hosts are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyinfra.api import StringCommand
from pyinfra.connectors.fake import FakeConnector


def record(log: Path) -> None:
    """Append every command that a fake host gets to `log`, a JSON object a line."""
    original = FakeConnector.run_shell_command

    def recorded(self: FakeConnector, command: Any, *args: Any, **arguments: Any) -> Any:
        running = self.host.executing_op_hash
        line = {
            "host": self.host.name,
            "operation": self.state.get_op_meta(running).names.copy().pop() if running else "",
            "command": command.get_raw_value() if isinstance(command, StringCommand) else command,
            "stdin": arguments.get("_stdin"),
        }
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return original(self, command, *args, **arguments)

    def refused(self: FakeConnector, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("files travel through run_shell_command, in one round trip")

    FakeConnector.run_shell_command = recorded
    FakeConnector.put_file = refused
    FakeConnector.get_file = refused
