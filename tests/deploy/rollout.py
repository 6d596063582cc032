"""The real command, `pyinfra --json -y INVENTORY deploy.py`, against fake hosts."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
GATE = {
    "first_token_ms": 51.0,
    "tokens_per_s": 30.5,
    "cpu_variant": "alderlake",
    "memory": {"current": 500 * 1024 * 1024},
}
PASSED = json.dumps({"ok": True, "serving": True, "restarted": ["llama-server"], "gate": GATE})

_INVENTORY = """
import json as _json
import sys as _sys
from pathlib import Path as _Path

_here = _Path(__file__).parent
_sys.path.insert(0, {code!r})
from tests.deploy.recorder import record as _record  # noqa: E402

_record(_here / "commands.jsonl")
_hosts = _json.loads((_here / "hosts.json").read_text())
"""


@dataclass(frozen=True)
class FakeHost:
    """A host that answers the survey with `survey`; None: the survey's command fails."""

    group: str
    survey: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    activate: str = PASSED
    probe: str = PASSED
    packages: str = ""
    """What apt-get complains of; it then fails."""

    def as_data(self) -> dict[str, Any]:
        survey: Any = {"success": False, "stderr": "sh: not found"}
        responses = {
            "say unreadable": survey if self.survey is None else self.survey,
            "edge-host probe": self.probe,
            "edge-host activate": {
                "stdout": self.activate,
                "success": json.loads(self.activate or '{"ok": false}')["ok"],
            },
        }
        if self.packages:
            responses["apt-get"] = {"success": False, "stderr": self.packages}
        return {
            **self.data, "fake_responses": responses, "fake_delay": 0, "fake_delay_jitter": 0
        }  # fmt: skip


@dataclass(frozen=True)
class Exec:
    """One round trip to a host; `operation` is empty for a fact."""

    operation: str
    command: str
    stdin: str | None

    @property
    def files(self) -> dict[str, bytes]:
        """What the operation that writes managed files sends, by the path it is moved to."""
        targets = [line.split()[3] for line in self.command.splitlines() if line.startswith("mv ")]
        if not targets:
            return {}
        assert self.stdin is not None
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(self.stdin))) as archive:
            members = [archive.extractfile(member) for member in archive.getmembers()]
            contents = [member.read() for member in members if member is not None]
        return dict(zip(targets, contents, strict=True))


@dataclass(frozen=True)
class Run:
    """How one run of the command ended."""

    code: int
    stdout: str
    log: str
    execs: Mapping[str, list[Exec]]

    @property
    def result(self) -> dict[str, Any]:
        """pyinfra's {plan, results}."""
        return dict(json.loads(self.stdout))

    def changed(self, host: str) -> list[str]:
        """The operations that changed this host, in order."""
        return [
            operation["name"]
            for operation in self.result["results"]["operations"]
            if _fake(host) in operation["success"]
        ]

    def failed(self, host: str) -> list[str]:
        """The operations that failed on this host."""
        return [
            operation["name"]
            for operation in self.result["results"]["operations"]
            if _fake(host) in operation["error"]
        ]

    def told(self, host: str) -> list[Exec]:
        """Every round trip to a host, facts included."""
        return self.execs.get(_fake(host), [])

    def said(self, host: str) -> str:
        """The lines of the log that begin with this host's name."""
        lines = (line.strip() for line in self.log.splitlines())
        return "\n".join(line for line in lines if line.startswith(f"[{_fake(host)}]"))


def _fake(host: str) -> str:
    return f"@fake/{host}"


def run_pyinfra(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """pyinfra as an operator starts it: in the checkout, which holds config.py."""
    return subprocess.run(
        [sys.executable, "-m", "pyinfra", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def write_inventory(
    folder: Path, hosts: Mapping[str, FakeHost], real: Mapping[str, Any] | None = None
) -> Path:
    """An inventory file of fake hosts, and of real ones with this data."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {name: host.as_data() for name, host in hosts.items()}
    (folder / "hosts.json").write_text(json.dumps(described))
    lines = [_INVENTORY.format(code=str(HERE))]
    for group in sorted({host.group for host in hosts.values()}):
        names = [name for name, host in hosts.items() if host.group == group]
        lines.append(f'{group} = [(f"@fake/{{name}}", _hosts[name]) for name in {names!r}]')
    lines.append(f"real = {list((real or {}).items())!r}")
    inventory = folder / "fake_fleet.py"
    inventory.write_text("\n".join(lines) + "\n")
    return inventory


def roll_out(
    folder: Path,
    hosts: Mapping[str, FakeHost],
    *options: str,
    real: Mapping[str, Any] | None = None,
) -> Run:
    """Run deploy.py for these hosts and read back what each of the fake ones was told."""
    inventory = write_inventory(folder, hosts, real)
    done = run_pyinfra(["--json", "-y", *options, str(inventory), "deploy.py"])
    execs: dict[str, list[Exec]] = {}
    record = folder / "commands.jsonl"
    for line in record.read_text().splitlines() if record.exists() else ():
        row = json.loads(line)
        execs.setdefault(row.pop("host"), []).append(Exec(**row))
    return Run(done.returncode, done.stdout, done.stderr, execs)
