"""The proxy's real wheels for arm64: what a Raspberry Pi 5 could not load is found before it."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from edge.artifacts import Cache, SilentProgress, fetch_proxy
from edge.artifacts.elf import check_wheel
from edge.hardware import PROXY_PYTHONS
from lab.paths import CHECKOUT

CODE = CHECKOUT / "files/chat_proxy"


@pytest.mark.parametrize("python", PROXY_PYTHONS)
def test_every_library_for_arm64_loads_with_16_kib_pages(tmp_path: Path, python: str) -> None:
    cache, lock = Cache(tmp_path / "cache"), CODE / "requirements.lock"
    made = fetch_proxy(CODE, lock, python, "aarch64", cache=cache, progress=SilentProgress())
    with tarfile.open(made.path) as tar:
        tar.extractall(tmp_path / "bundle", filter="data")
    wheels = sorted((tmp_path / "bundle/wheels").iterdir())
    native = [wheel.name for wheel in wheels if _has_library(wheel)]
    assert any("pydantic_core" in name for name in native)
    for wheel in wheels:
        check_wheel(wheel, "aarch64")


def _has_library(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any(".so" in name for name in archive.namelist())
