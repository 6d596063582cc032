"""Which engines there are: llama.cpp's own releases, and a build from a source package.

Everything here is known without fetching anything, so that a plan can be solved first.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Literal

Kind = Literal["release", "build"]
Arch = Literal["x86_64", "aarch64"]

_RELEASE_BUILD = 11541
_RELEASES = "https://github.com/ggml-org/llama.cpp/releases/download"

#: Official tarballs: file, sha256, and the glibc of the Ubuntu that each was built on.
_RELEASE_PINS: dict[Arch, tuple[str, str, tuple[int, int]]] = {
    "x86_64": (
        "llama-b11541-bin-ubuntu-x64.tar.gz",
        "36ca310be4405acb7ba59b32dbdce32bb9cd7b1ef95358997b7eaed2c6f0188b",
        (2, 35),
    ),
    "aarch64": (
        "llama-b11541-bin-ubuntu-arm64.tar.gz",
        "fcd44afd8ecdd2068d0c8505c0f96fa32014b4814d0dc74947a471deddcb9998",
        (2, 39),
    ),
}

#: The source package that carries llama.cpp b11312 in vendor/llama.cpp.
SDIST_NAME = "llama-cpp-python"
SDIST_VERSION = "0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_BUILD = 11312
SDIST_COMMIT = "0c1e57098"

#: What is built of ggml's CPU back ends; the engine picks the best of them when it starts.
#: Without sapphirerapids: gcc 12 miscompiles its AMX code (SIGILL).
BUILD_VARIANTS: dict[Arch, tuple[str, ...]] = {
    "x86_64": ("x64", "haswell", "skylakex", "icelake", "alderlake", "zen4"),
    "aarch64": ("armv8.0_1", "armv8.2_1", "armv8.2_2"),
}

#: CMake options of the build. LLAMA_USE_PREBUILT_UI must be off: it would download the UI.
#: GIT_EXE off: the commit is pinned here, whatever repository the cache lies in.
BUILD_OPTIONS: dict[str, str] = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "GGML_NATIVE": "OFF",
    "GGML_BACKEND_DL": "ON",
    "GGML_CPU_ALL_VARIANTS": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_NUMBER": str(SDIST_BUILD),
    "LLAMA_BUILD_COMMIT": SDIST_COMMIT,
    "GIT_EXE": "OFF",
}

#: Raise it when the layout that engine_pack writes changes: hosts see it as a new release.
_LAYOUT = 1


@dataclass(frozen=True)
class EnginePin:
    """One engine that could be installed; `glibc_floor` is the oldest glibc it can run on."""

    kind: Kind
    build: int
    arch: Arch
    glibc_floor: tuple[int, int]
    release_id: str
    url: str | None
    sha256: str | None


def candidates(
    engine_source: Literal["auto", "release", "build"],
    arch: str,
    *,
    controller_glibc: tuple[int, int] | None = None,
) -> tuple[EnginePin, ...]:
    """The engines for `arch`, the preferred one first; empty for an architecture without one.

    `controller_glibc` is where a build would be made (default: here): from glibc 2.38 on, the
    headers bind programs to symbols that older hosts lack.
    """
    known = next((name for name in BUILD_VARIANTS if name == arch), None)
    if known is None:
        return ()
    found = []
    if engine_source in ("auto", "release"):
        found.append(_release_pin(known))
    if engine_source in ("auto", "build"):
        found.append(_build_pin(known, controller_glibc or _own_glibc()))
    return tuple(found)


def _release_pin(arch: Arch) -> EnginePin:
    file, sha256, floor = _RELEASE_PINS[arch]
    return EnginePin(
        kind="release",
        build=_RELEASE_BUILD,
        arch=arch,
        glibc_floor=floor,
        release_id=f"b{_RELEASE_BUILD}-release",
        url=f"{_RELEASES}/b{_RELEASE_BUILD}/{file}",
        sha256=sha256,
    )


def _build_pin(arch: Arch, controller_glibc: tuple[int, int]) -> EnginePin:
    recipe = json.dumps([SDIST_SHA256, BUILD_OPTIONS, BUILD_VARIANTS[arch], _LAYOUT])
    return EnginePin(
        kind="build",
        build=SDIST_BUILD,
        arch=arch,
        glibc_floor=(2, 38) if controller_glibc >= (2, 38) else (2, 34),
        release_id=f"b{SDIST_BUILD}-build-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}",
        url=None,
        sha256=None,
    )


def _own_glibc() -> tuple[int, int]:
    """The controller's glibc, for example (2, 36); (0, 0) where it has another C library."""
    try:
        _name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = version.split(".")[:2]
        return int(major), int(minor)
    except (ValueError, OSError):
        return (0, 0)
