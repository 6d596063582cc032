"""What the controller fetches, builds and packs before it touches a host.

Exported lazily: settings and the solver use the pure parts without loading an HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.artifacts.cache import Artifact, Cache
    from edge.artifacts.engine import cached_engine, fetch_engine
    from edge.artifacts.engine_pins import EnginePin, candidates
    from edge.artifacts.errors import ArtifactError
    from edge.artifacts.model import LocalModel, fetch_model
    from edge.artifacts.progress import LineProgress, Progress, SilentProgress
    from edge.artifacts.proxy import fetch_proxy, proxy_release_id
    from edge.artifacts.sources import ModelSource, SourceError, parse_source

_HOME = {
    "Artifact": "cache",
    "ArtifactError": "errors",
    "Cache": "cache",
    "EnginePin": "engine_pins",
    "LineProgress": "progress",
    "LocalModel": "model",
    "ModelSource": "sources",
    "Progress": "progress",
    "SilentProgress": "progress",
    "SourceError": "sources",
    "cached_engine": "engine",
    "candidates": "engine_pins",
    "fetch_engine": "engine",
    "fetch_model": "model",
    "fetch_proxy": "proxy",
    "parse_source": "sources",
    "proxy_release_id": "proxy",
}

__all__ = [
    "Artifact",
    "ArtifactError",
    "Cache",
    "EnginePin",
    "LineProgress",
    "LocalModel",
    "ModelSource",
    "Progress",
    "SilentProgress",
    "SourceError",
    "cached_engine",
    "candidates",
    "fetch_engine",
    "fetch_model",
    "fetch_proxy",
    "parse_source",
    "proxy_release_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
