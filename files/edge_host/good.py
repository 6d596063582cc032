"""The last good state: the copy of it that a host goes back to, and the manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from .files import write_atomic, write_json
from .paths import Paths
from .result import Failed, now, say
from .wanted import FORMAT, Wanted


def snapshot(paths: Paths, files: Iterable[str]) -> list[dict[str, Any]]:
    """Content, mode and owner of files; content None for one that does not exist."""
    found: list[dict[str, Any]] = []
    for path in files:
        real = paths.at(path)
        if not real.exists():
            found.append({"path": path, "content": None})
            continue
        status = real.stat()
        found.append(
            {
                "path": path,
                # Readable, and any bytes come back as they were.
                "content": real.read_bytes().decode("utf-8", "surrogateescape"),
                "mode": status.st_mode & 0o7777,
                "uid": status.st_uid,
                "gid": status.st_gid,
                "mtime_ns": status.st_mtime_ns,
            }
        )
    return found


def restore(paths: Paths, good: list[dict[str, Any]], wanted: Wanted, *, times: bool) -> None:
    """Make files what a snapshot says; files of `wanted` that it does not know are removed.

    Files that `wanted` calls newest stay as they are, if they are there.

    `times`: give them their old times as well, because what runs was started from them. Where it
    was not, a file that is newer than a process is what tells a later run to restart it.
    """
    present = {entry["path"]: entry for entry in good if entry["content"] is not None}
    for path in sorted({*wanted.files, *(entry["path"] for entry in good)} - set(present)):
        if paths.at(path).exists():
            say(f"removing {path}")
            paths.at(path).unlink()
    for path, entry in present.items():
        if path in wanted.newest and paths.at(path).exists():
            continue
        found = snapshot(paths, [path])[0]
        if {**found, "mtime_ns": 0} != {**entry, "mtime_ns": 0}:
            say(f"restoring {path}")
            data = entry["content"].encode("utf-8", "surrogateescape")
            write_atomic(paths.at(path), data, entry["mode"], (entry["uid"], entry["gid"]))
            if times:
                os.utime(paths.at(path), ns=(entry["mtime_ns"], entry["mtime_ns"]))


def load_good(paths: Paths) -> tuple[Wanted, list[dict[str, Any]]] | None:
    """The last good state and its files, or None where there is none."""
    try:
        good = json.loads(paths.good.read_bytes())
        return Wanted.parse(good["wanted"]), list(good["files"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, Failed) as error:
        say(f"the copy of the last good state cannot be used: {error!r}")
        return None


def keep_good(paths: Paths, wanted: Wanted, gate: dict[str, Any]) -> None:
    """Record that the wanted state is good: first the copy to go back to, then the manifest."""
    paths.good.parent.mkdir(parents=True, exist_ok=True)
    paths.good.parent.chmod(0o700)  # the copies hold secrets
    good = {"time": now(), "wanted": wanted.raw, "files": snapshot(paths, wanted.files)}
    write_json(paths.good, good, 0o600)
    kept = {key: wanted.raw[key] for key in ("releases", "model", "digests", "plan_digest")}
    write_json(
        paths.state / "manifest.json", {"format": FORMAT, **kept, "time": now(), "gate": gate}
    )
