"""What one machine is, from its making to its removal: spec.json in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.network import Link
from lab.system import write

_FILE = "spec.json"


@dataclass(frozen=True)
class MachineSpec:
    """A host of the machine tier. authorized_key is one public key line.

    frozen: the directory in the cache with the memory and the disk that it is resumed from.
    accelerator: what it was frozen under (tcg, kvm), and runs under.
    """

    name: str
    hardware: str
    frozen: str
    accelerator: str
    link: Link
    authorized_key: str

    def save(self, directory: Path) -> None:
        write(directory / _FILE, json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, directory: Path) -> MachineSpec:
        data = json.loads((directory / _FILE).read_text())
        return cls(**{**data, "link": Link(**data["link"])})
