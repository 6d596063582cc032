"""One content-addressed cache for everything that the controller sends to hosts.

    blobs/<sha256>         a file, named by what is in it
    blobs/<sha256>.ok      "<size> <mtime_ns>" as they were when the file was last hashed
    engines/<id>.json      which blob was made for an engine release
    proxies/<id>.json      … for a proxy bundle
    work/…                 half downloads and build directories; safe to delete
    locks/…                one file a lock

A blob appears by an atomic rename after it has been hashed, so nothing half-written is ever one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from edge.artifacts.errors import ArtifactError
from edge.artifacts.progress import Progress, SilentProgress

_CHUNK = 4 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Artifact:
    """A file in the cache that is ready to be sent to hosts."""

    path: Path
    sha256: str
    size_bytes: int
    release_id: str


def default_cache_root() -> Path:
    """$EDGE_LLM_CACHE, else $XDG_CACHE_HOME/edge-llm, else ~/.cache/edge-llm."""
    if own := os.environ.get("EDGE_LLM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "edge-llm"


def sha256_of(path: Path, progress: Progress | None = None, what: str = "") -> str:
    """The file's sha256 in hex; `what` names it in the progress."""
    progress = progress or SilentProgress()
    digest = hashlib.sha256()
    progress.start(f"checking {what or path.name}", path.stat().st_size)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            progress.advance(len(chunk))
    progress.done()
    return digest.hexdigest()


class Cache:
    """The cache under `root`; created when first used. Safe for several controllers at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_cache_root()

    def blob(self, sha256: str) -> Path | None:
        """The file with this digest, or None.

        A file whose size and mtime are those of its stamp is not read again. One that was
        changed since is hashed again, and removed when it is no longer what its name says.
        """
        path = self._blob_path(sha256)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        if self._stamp(path) == _fingerprint(stat):
            return path
        if sha256_of(path) != sha256:
            path.unlink(missing_ok=True)
            return None
        self._write_stamp(path)
        return path

    def add(self, path: Path, sha256: str, progress: Progress | None = None) -> Path:
        """Check that `path` has this digest and move it in; gives the blob's path.

        Raises ArtifactError, and leaves `path` where it is, when the digest differs.
        """
        found = sha256_of(path, progress)
        if found != sha256:
            raise ArtifactError(
                f"{path} is not what was asked for: expected sha256 {sha256}, found {found} "
                f"({path.stat().st_size} bytes)"
            )
        return self.adopt(path, sha256)

    def adopt(self, path: Path, sha256: str) -> Path:
        """Move in `path`, which the caller has just hashed; gives the blob's path."""
        target = self._blob_path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.replace(target)
        except OSError:  # another file system: copy beside the target, then rename
            beside = self.work("incoming") / f"{sha256}.{os.getpid()}"
            shutil.copyfile(path, beside)
            beside.replace(target)
            path.unlink()
        self._write_stamp(target)
        return target

    @contextmanager
    def lock(self, name: str, waiting: Progress | None = None) -> Iterator[None]:
        """Hold the lock `name` against every other controller that uses this cache."""
        folder = self.root / "locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(
                f"the cache {self.root} cannot be used: {error.strerror}; EDGE_LLM_CACHE names "
                "another folder"
            ) from error
        lock = FileLock(folder / f"{_safe(name)}.lock")
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            (waiting or SilentProgress()).start(
                f"another controller works on {name}; waiting", None
            )
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def work(self, *parts: str) -> Path:
        """A folder for half-done work, created. It is kept so that a next run goes on there."""
        folder = self.root.joinpath("work", *map(_safe, parts))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def record(self, kind: str, key: str, artifact: Artifact) -> None:
        """Remember `artifact` as what was made for `key`; `kind` is "engines" or "proxies"."""
        path = self._index_path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = asdict(artifact)
        del fields["path"]  # a cache may be moved
        write_atomic(path, json.dumps(fields, indent=1))

    def recorded(self, kind: str, key: str) -> Artifact | None:
        """What `record` remembered, if its blob is still there and sound."""
        try:
            fields: dict[str, Any] = json.loads(self._index_path(kind, key).read_text())
            path = self.blob(fields["sha256"])
            return Artifact(path=path, **fields) if path else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _blob_path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise ArtifactError(f"not a sha256: {sha256!r} (64 hexadecimal digits, lower case)")
        return self.root / "blobs" / sha256

    def _index_path(self, kind: str, key: str) -> Path:
        return self.root / _safe(kind) / f"{_safe(key)}.json"

    def _stamp(self, blob: Path) -> str | None:
        try:
            return blob.with_suffix(".ok").read_text()
        except FileNotFoundError:
            return None

    def _write_stamp(self, blob: Path) -> None:
        write_atomic(blob.with_suffix(".ok"), _fingerprint(blob.stat()))


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def _fingerprint(stat: os.stat_result) -> str:
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _safe(name: str) -> str:
    """`name` as one path component."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".") or "_"
