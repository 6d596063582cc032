"""The model: fetched once by the controller, verified, and kept in the cache."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.cache import Cache, sha256_of
from edge.artifacts.download import download, wrong_sha256
from edge.artifacts.errors import ArtifactError
from edge.artifacts.hub import resolve
from edge.artifacts.progress import Progress
from edge.artifacts.sources import ModelSource
from edge.model_info import ModelFileError, ModelInfo, read_model_info


@dataclass(frozen=True)
class LocalModel:
    """A verified model in the cache."""

    path: Path
    sha256: str
    size_bytes: int
    info: ModelInfo


def fetch_model(
    source: ModelSource,
    sha256: str | None,
    *,
    cache: Cache,
    hub_endpoint: str | None,
    progress: Progress,
) -> LocalModel:
    """The model at `source`; nothing is downloaded when the cache has it.

    `sha256` may be None (or empty) for a file on this machine only. `hub_endpoint` replaces the
    hub client's own (None: as it is configured). Raises ArtifactError.
    """
    if source.kind == "file":
        return _local(source, sha256 or None, cache, progress)
    if not sha256:
        raise ArtifactError(
            f"{source}: model_sha256 is needed for what comes over a network "
            "(only a file:// source may go without)"
        )
    with cache.lock(f"blob-{sha256}", progress):
        path = cache.blob(sha256)
        if path is None:
            url, headers = source.url, {}
            if source.kind == "hub":
                found = resolve(source, sha256, hub_endpoint or None)
                url, headers = found.url, dict(found.headers)
            path = download(
                url,
                sha256,
                cache=cache,
                progress=progress,
                what=source.file_name,
                headers=headers,
            )
    return _described(path, sha256, source)


def _local(source: ModelSource, sha256: str | None, cache: Cache, progress: Progress) -> LocalModel:
    if sha256 is not None and (known := cache.blob(sha256)) is not None:
        return _described(known, sha256, source)
    path = source.path
    if path is None or not path.is_file():
        raise ArtifactError(f"there is no file {path} on the controller")
    found = sha256_of(path, progress, source.file_name)
    if sha256 is not None and found != sha256:
        raise ArtifactError(wrong_sha256(source.file_name, str(source), path, sha256, found))
    _described(path, found, source)  # a file that is no model does not enter the cache
    with cache.lock(f"blob-{found}", progress):
        blob = cache.blob(found)
        if blob is None:
            blob = cache.adopt(_linked(path, cache.work("downloads") / found), found)
    return _described(blob, found, source)


def _linked(path: Path, target: Path) -> Path:
    """A second name for `path`: no second 500 MB, except across file systems.

    If the operator's file is changed in place later, the blob's stamp no longer agrees and the
    cache drops it.
    """
    target.unlink(missing_ok=True)
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
    return target


def _described(path: Path, sha256: str, source: ModelSource) -> LocalModel:
    try:
        info = read_model_info(path, sha256, file_name=source.file_name)
    except ModelFileError as error:
        raise ArtifactError(f"{source} cannot be served: {error}") from error
    return LocalModel(path=path, sha256=sha256, size_bytes=info.size_bytes, info=info)
