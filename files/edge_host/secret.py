"""The engine's key: made once on each host, for its two services; it never leaves the host."""

from __future__ import annotations

import os
import re
import secrets
import stat

from .files import write_atomic
from .paths import Paths
from .result import Failed, say
from .systemd import Shown, running

FILE = "/etc/edge-llm/engine.env"
VARIABLE = "LLAMA_API_KEY"
LINE = re.compile(rf"{VARIABLE}=([0-9a-f]{{64}})\n")


def read_key(paths: Paths) -> str:
    """The key; "" where there is none, or none that only root can have read."""
    try:
        descriptor = os.open(paths.at(FILE), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        found = os.fstat(descriptor)
        closed = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
        if not closed or (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            return ""
        line = LINE.fullmatch(os.read(descriptor, 200).decode("ascii", "replace"))
    finally:
        os.close(descriptor)
    return line[1] if line else ""


def ensure_key(paths: Paths) -> None:
    """Make a key where there is none that can be used. Raises Failed or OSError."""
    if read_key(paths):
        return
    if paths.at(FILE).is_dir() and not paths.at(FILE).is_symlink():
        raise Failed(f"{FILE} is a folder: remove it, and roll out again")
    say(f"making a new key for the engine in {FILE}")
    text = f"{VARIABLE}={secrets.token_hex(32)}\n"
    write_atomic(paths.at(FILE), text.encode(), 0o600, (os.geteuid(), os.getegid()))


def has_other_key(paths: Paths, shown: Shown, unit: str) -> bool:
    """Whether a service whose unit takes the key runs with another one than the file's."""
    if FILE not in shown[unit].get("EnvironmentFiles", "").split():
        return False  # a unit from before there were keys
    pid, environment = running(paths, shown, unit)
    return pid != 0 and environment.get(VARIABLE, "") != read_key(paths)


def headers(paths: Paths) -> dict[str, str]:
    """What opens the engine, and the proxy where that asks for keys."""
    key = read_key(paths)
    return {"Authorization": f"Bearer {key}"} if key else {}
