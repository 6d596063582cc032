"""Files that are replaced at once, and are on the disk when it is said so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(
    path: Path, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file's content, mode and (uid, gid) at once, and on the disk before returning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.edge-host")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", mode)


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
