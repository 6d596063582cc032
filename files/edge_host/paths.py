"""Where everything is on a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KINDS = ("engine", "proxy")


@dataclass(frozen=True)
class Paths:
    """Where everything is. Another root is for tests."""

    root: Path = Path("/")
    systemctl: str = "systemctl"
    journalctl: str = "journalctl"

    def at(self, path: str) -> Path:
        """A host's absolute path, below the root."""
        return self.root / path.lstrip("/")

    def current(self, kind: str) -> Path:
        """The link that chooses the release of "engine" or "proxy"."""
        return self.at(f"/opt/edge-llm/{kind}/current")

    def releases(self, kind: str) -> Path:
        """The folder of all releases of "engine" or "proxy"."""
        return self.at(f"/opt/edge-llm/{kind}/releases")

    @property
    def models(self) -> Path:
        return self.at("/opt/edge-llm/models")

    @property
    def state(self) -> Path:
        return self.at("/var/lib/edge-llm")

    @property
    def good(self) -> Path:
        return self.state / "good" / "state.json"

    @property
    def lock(self) -> Path:
        return self.at("/run/edge-llm/lock")
