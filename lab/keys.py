"""The key of the lab's chats. The hosts get its hash; in the clear it is in the state directory."""

from __future__ import annotations

import os

from edge import keys
from lab.paths import Lab
from lab.system import give_to_person, write

NAME = "lab"


def ensure(lab: Lab) -> None:
    """Make the key, unless there is one."""
    if lab.api_key.exists() and lab.api_keys.exists():
        return
    key, made = keys.make(NAME)
    lab.api_key.unlink(missing_ok=True)
    with os.fdopen(os.open(lab.api_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")
    write(lab.api_keys, made.line)
    give_to_person(lab.api_key, lab.api_keys)
