"""Where the lab keeps its things: state in the checkout, images and models in the user's cache."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
DEFAULT_NAME = "edge"
# A veth name is "<name>-veth<number>" and the kernel allows 15 characters.
_NAME = re.compile(r"[a-z][a-z0-9]{0,6}")


class LabError(Exception):
    """Something the lab cannot do, in words for the person who typed the command."""


@dataclass(frozen=True)
class Lab:
    """One lab: its name (prefix of host names), its state directory, the shared cache."""

    name: str
    state: Path
    cache: Path

    @property
    def fleet_file(self) -> Path:
        return self.state / "fleet.json"

    @property
    def hosts_dir(self) -> Path:
        return self.state / "hosts"

    @property
    def ssh_key(self) -> Path:
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def api_key(self) -> Path:
        """The chats' key in the clear."""
        return self.state / "api-key"

    @property
    def api_keys(self) -> Path:
        """What `api_keys_file` names for the lab's hosts."""
        return self.state / "api-keys"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def models(self) -> Path:
        return self.cache / "models"

    def host_dir(self, host: str) -> Path:
        return self.hosts_dir / host

    @classmethod
    def from_environment(cls) -> Lab:
        """The lab that EDGE_LAB_NAME and EDGE_LAB_STATE ask for; raises LabError on a bad name."""
        name = os.environ.get("EDGE_LAB_NAME", DEFAULT_NAME)
        if not _NAME.fullmatch(name):
            raise LabError(
                f"EDGE_LAB_NAME={name!r}: a lab's name has 1 to 7 lower-case letters and digits "
                "and begins with a letter (host and interface names are made from it)"
            )
        default = CHECKOUT / ".lab"
        if name != DEFAULT_NAME:
            default = default / "labs" / name
        state = Path(os.environ.get("EDGE_LAB_STATE") or default)
        return cls(name=name, state=state.absolute(), cache=cache_root() / "lab")


def cache_root() -> Path:
    """$EDGE_LLM_CACHE, or edge-llm in the user's cache directory."""
    if own := os.environ.get("EDGE_LLM_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "edge-llm"


if __name__ == "__main__":  # scripts/demo, before anything is installed
    try:
        Lab.from_environment()
    except LabError as error:
        sys.exit(f"Error: {error}")
