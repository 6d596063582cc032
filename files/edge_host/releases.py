"""Releases of engine and proxy, and models: are they there, which is chosen, which go."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from .files import sync_directory
from .paths import KINDS, Paths
from .result import Failed, say
from .wanted import Wanted

STALE_S = 86_400  # what a transfer left half done a day ago is nobody's any more


def check(paths: Paths, wanted: Wanted) -> None:
    """Raises Failed if a part of the wanted state is not on this host."""
    for kind in KINDS:
        release = paths.releases(kind) / wanted.releases[kind]
        if not (release / ".complete").exists():
            raise Failed(f"the {kind} release {release} is not there, or not complete")
    if not paths.at(wanted.model_path).is_file():
        raise Failed(f"the model {wanted.model_path} is not there")


def point(link: Path, target: str) -> None:
    """Let a link name `target`, from one moment to the next."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    say(f"{link} -> {target}")
    temporary = link.with_name(f".{link.name}.edge-host")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    sync_directory(link.parent)


def prune(paths: Paths, wanted: Wanted) -> None:
    """Remove old releases, old models, and what transfers left half done."""
    keep = [(paths.releases(kind), ".complete", wanted.releases[kind]) for kind in KINDS]
    keep.append((paths.models, ".verified", Path(wanted.model_path).parent.name))
    # Archives that arrived and were unpacked are gone; what is left there was never finished.
    keep += [(paths.at(f"/opt/edge-llm/{kind}/incoming"), ".complete", "") for kind in KINDS]
    links = {paths.current(kind).resolve() for kind in KINDS}
    for folder, marker, chosen in keep:
        old: list[Path] = []
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name == chosen or entry.resolve() in links:
                continue
            if (entry / marker).exists() and not entry.name.endswith((".tmp", ".part")):
                old.append(entry)
            elif entry.lstat().st_mtime < time.time() - STALE_S:
                remove(entry)
        old.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in old[wanted.keep_releases :]:
            remove(entry)


def remove(entry: Path) -> None:
    """Remove a file or tree; a tree that is half removed is never taken for whole."""
    say(f"removing {entry}")
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    dying = entry if entry.name.endswith(".tmp") else entry.with_name(f"{entry.name}.tmp")
    if dying != entry:
        shutil.rmtree(dying, ignore_errors=True)  # of a run that was killed here
        entry.rename(dying)
    shutil.rmtree(dying)
