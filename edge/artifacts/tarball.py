"""Tarballs with the same bytes for the same content, whoever packs them and when."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

#: 2020-01-01: tar warns about files from 1970 on some systems, and pip refuses zips before 1980.
_MTIME = 1577836800


def pack(folder: Path, target: Path) -> None:
    """Write every file under `folder` (no links) to `target`, a .tar.gz.

    Sorted, owned by root, with one fixed time and only two modes (0644, and 0755 for programs),
    so that two packs of the same content have one sha256.
    """
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=_MTIME) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.mtime = _MTIME
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as stream:
                tar.addfile(entry, stream)
