"""The engine (llama-server and its CPU back ends) as one tarball per release and architecture."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from edge.artifacts.cache import Artifact, Cache, sha256_of
from edge.artifacts.download import download
from edge.artifacts.engine_build import build_engine
from edge.artifacts.engine_pack import pack_engine
from edge.artifacts.engine_pins import EnginePin, candidates
from edge.artifacts.errors import ArtifactError
from edge.artifacts.progress import Progress

__all__ = ["EnginePin", "cached_engine", "candidates", "fetch_engine"]


def cached_engine(pin: EnginePin, cache: Cache) -> Artifact | None:
    """The engine if an earlier run has fetched or built it; asks no network."""
    return cache.recorded("engines", _key(pin))


def fetch_engine(
    pin: EnginePin, *, cache: Cache, progress: Progress, release_base_url: str | None = None
) -> Artifact:
    """The engine's tarball in the layout that hosts get (see engine_pack).

    A release is downloaded and repacked, a build is made here. `release_base_url` names a
    mirror of the releases (http, https or file) that has <base>/b<build>/<file>.
    Raises ArtifactError.
    """
    with cache.lock(f"engine-{_key(pin)}", progress):
        if (known := cached_engine(pin, cache)) is not None:
            return known
        packed = cache.work("packing") / f"{_key(pin)}.tar.gz"
        if pin.kind == "build":
            build_engine(pin, packed, cache=cache, progress=progress)
        else:
            _repack_release(pin, packed, cache, progress, release_base_url)
        sha256, size = sha256_of(packed), packed.stat().st_size
        path = cache.adopt(packed, sha256)
        artifact = Artifact(path=path, sha256=sha256, size_bytes=size, release_id=pin.release_id)
        cache.record("engines", _key(pin), artifact)
        return artifact


def _key(pin: EnginePin) -> str:
    return f"{pin.release_id}-{pin.arch}"


def _repack_release(
    pin: EnginePin, packed: Path, cache: Cache, progress: Progress, base_url: str | None
) -> None:
    if pin.url is None or pin.sha256 is None:
        raise ArtifactError(f"{pin.release_id}: a release needs a url and a sha256")
    url = pin.url
    if base_url is not None:
        url = "/".join([base_url.rstrip("/"), *pin.url.split("/")[-2:]])
    try:
        tarball = cache.blob(pin.sha256) or download(
            url, pin.sha256, cache=cache, progress=progress, what="the engine's release"
        )
    except ArtifactError as error:
        raise ArtifactError(
            f"{error}\nOr set engine_release_base_url to a mirror, or engine_source to build"
        ) from error
    unpacked = cache.work("release", _key(pin))
    try:
        with tarfile.open(tarball) as tar:
            tar.extractall(unpacked, filter="data")
        servers = sorted(unpacked.rglob("llama-server"))
        if not servers:
            raise ArtifactError(f"{url} holds no llama-server")
        pack_engine(servers[0].parent, packed, pin)
    except (tarfile.TarError, OSError) as error:
        raise ArtifactError(f"{url} cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(unpacked)
