"""A file of API keys, as the rollout writes it."""

import hashlib
import json
from pathlib import Path
from typing import Any


class KeyFile:
    """The key of NAME is "edge-NAME-key"."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *keys: str | dict[str, Any]) -> str:
        """Replace the file by one rename; a name alone stands for a key without limits."""
        rows = []
        for key in keys:
            given = {"name": key} if isinstance(key, str) else key
            digest = hashlib.sha256(token(given["name"]).encode()).hexdigest()
            rows.append({"sha256": digest, "rate_per_minute": None, "expires": None, **given})
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"keys": rows}))
        fresh.rename(self.path)
        return str(self.path)


def token(name: str) -> str:
    return f"edge-{name}-key"


def bearer(name: str) -> dict[str, str]:
    """The header of a client that has the key of `name`."""
    return {"authorization": f"Bearer {token(name)}"}
