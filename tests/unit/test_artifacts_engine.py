"""Engine pins, the packing, and releases from a mirror. The real build: tests/lab."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import struct
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import markupsafe._speedups
import pytest

from edge.artifacts import (
    ArtifactError,
    Cache,
    EnginePin,
    SilentProgress,
    cached_engine,
    candidates,
    fetch_engine,
)
from edge.artifacts.elf import read_elf
from edge.artifacts.engine_pack import pack_engine
from tests.unit.artifacts_server import Reply, Server, running_server

FOREIGN = "aarch64" if platform.machine() == "x86_64" else "x86_64"
_MACHINE = {"x86_64": 62, "aarch64": 183}


def write_elf(
    path: Path,
    arch: str,
    needed: list[str],
    versions: list[str],
    soname: str | None = None,
    page_size: int = 0x10000,
) -> Path:
    """The least of an ELF file that has dependencies and versioned symbols."""
    strings = b"\0"
    places: dict[str, int] = {}
    for text in [*needed, *versions, *([soname] if soname else [])]:
        places[text] = len(strings)
        strings += text.encode() + b"\0"
    aux = b"".join(
        struct.pack("<IHHII", 0, 0, 2, places[version], 16 if version != versions[-1] else 0)
        for version in versions
    )
    verneed = struct.pack("<HHIII", 1, len(versions), places[needed[0]], 16, 0) + aux
    header_size, base = 64 + 2 * 56, 0x10000
    string_at = header_size
    need_at = string_at + len(strings)
    dynamic_at = need_at + len(verneed)
    tags = [(1, places[name]) for name in needed]
    tags += [(5, base + string_at), (0x6FFFFFFE, base + need_at), (0x6FFFFFFF, 1)]
    tags += [(14, places[soname])] if soname else []
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in [*tags, (0, 0)])
    size = dynamic_at + len(dynamic)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, _MACHINE[arch], 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, page_size)
    segments += struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, base + dynamic_at, 0, len(dynamic), len(dynamic), 8
    )
    path.write_bytes(header + segments + strings + verneed + dynamic)
    return path


def write_engine(
    folder: Path, arch: str = FOREIGN, glibc: str = "GLIBC_2.34", page_size: int = 0x10000
) -> Path:
    """A folder as llama.cpp's build or release leaves it, links and other tools included."""
    folder.mkdir(parents=True)
    server = ["libllama.so.0", "libstdc++.so.6", "libc.so.6"]
    write_elf(folder / "llama-server", arch, server, ["GLIBC_2.17", glibc, "GLIBCXX_3.4.30"])
    write_elf(folder / "llama-cli", arch, server, ["GLIBC_2.17"])
    write_elf(folder / "libllama.so.0.5.0", arch, ["libggml.so.0"], ["GLIBC_2.2.5"])
    write_elf(folder / "libggml.so.0.25.3", arch, ["libc.so.6"], ["GLIBC_2.14"])
    for name in ("x64", "haswell", "sapphirerapids"):
        needed = ["libggml.so.0", "libgomp.so.1"]
        library = folder / f"libggml-cpu-{name}.so"
        write_elf(library, arch, needed, ["GLIBC_2.29"], page_size=page_size)
    write_elf(folder / "libggml-rpc.so", arch, ["libc.so.6"], ["GLIBC_2.17"])
    for link, target in (
        ("libllama.so.0", "libllama.so.0.5.0"),
        ("libggml.so.0", "libggml.so.0.25.3"),
    ):
        (folder / link).symlink_to(target)
    return folder


def pin_for(arch: str, **changes: object) -> EnginePin:
    pin = EnginePin("build", 11312, arch, (2, 34), "b11312-build-test", None, None)
    return dataclasses.replace(pin, **changes)


def engine_json(tarball: Path) -> dict[str, object]:
    with tarfile.open(tarball) as tar:
        member = tar.extractfile("engine.json")
        assert member is not None
        return json.load(member)


# Pins


def test_auto_takes_the_release_first() -> None:
    release, build = candidates("auto", "x86_64")
    assert (release.kind, release.build, release.glibc_floor) == ("release", 11541, (2, 35))
    assert release.release_id == "b11541-release"
    assert (build.kind, build.build) == ("build", 11312)
    assert candidates("release", "x86_64") == (release,)
    assert candidates("build", "x86_64") == (build,)
    assert candidates("release", "aarch64")[0].glibc_floor == (2, 39)


def test_an_architecture_without_an_engine() -> None:
    assert candidates("auto", "armv7l") == ()


def test_a_build_is_named_by_its_recipe() -> None:
    ids = {candidates("build", arch)[0].release_id for arch in ("x86_64", "aarch64")}
    assert len(ids) == 2
    assert all(name.startswith("b11312-build-") for name in ids)


@pytest.mark.parametrize(
    ("controller", "floor"), [((2, 35), (2, 34)), ((2, 37), (2, 34)), ((2, 39), (2, 38))]
)
def test_a_build_is_as_new_as_its_controller(
    controller: tuple[int, int], floor: tuple[int, int]
) -> None:
    (pin,) = candidates("build", "x86_64", controller_glibc=controller)
    assert pin.glibc_floor == floor


# ELF


def test_reads_a_real_program() -> None:
    info = read_elf(Path(sys.executable).resolve())
    assert info.arch == platform.machine()
    assert "libc.so.6" in info.needed
    own = tuple(map(int, platform.libc_ver()[1].split(".")))
    assert (2, 0) < info.floor("GLIBC") <= own
    assert info.floor("NO_SUCH") == ()
    assert info.page_size % os.sysconf("SC_PAGE_SIZE") == 0


@pytest.mark.parametrize("contents", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(60)])
def test_what_is_no_program_is_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(contents)
    with pytest.raises(ArtifactError, match="not a program"):
        read_elf(path)


# Packing


def test_packs_what_the_server_needs_and_no_more(tmp_path: Path) -> None:
    target = tmp_path / "engine.tar.gz"
    pack_engine(write_engine(tmp_path / "bin"), target, pin_for(FOREIGN), commit="0c1e57098")
    with tarfile.open(target) as tar:
        entries = {entry.name: entry for entry in tar}
    assert sorted(entries) == [
        "engine.json",
        "libggml-cpu-haswell.so",
        "libggml-cpu-x64.so",
        "libggml.so.0",
        "libllama.so.0",
        "llama-server",
    ]
    assert all(entry.isfile() for entry in entries.values())
    assert entries["llama-server"].mode == 0o755
    assert engine_json(target) == {
        "arch": FOREIGN,
        "build": 11312,
        "commit": "0c1e57098",
        "glibc_floor": [2, 34],
        "glibcxx_floor": "3.4.30",
        "kind": "build",
        "system_libraries": ["libc.so.6", "libgomp.so.1", "libstdc++.so.6"],
        "variants": ["haswell", "x64"],
    }


def test_two_packs_are_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = write_engine(tmp_path / name)
        pack_engine(folder, tmp_path / f"{name}.tar.gz", pin_for(FOREIGN))
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_a_newer_glibc_than_planned_is_refused(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "bin", glibc="GLIBC_2.38")
    with pytest.raises(ArtifactError, match=r"needs glibc 2\.38.*counts on 2\.34.*Debian 12"):
        pack_engine(folder, tmp_path / "t.tar.gz", pin_for(FOREIGN))
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("lost", ["llama-server", "libllama.so.0.5.0", "libggml-cpu-haswell.so"])
def test_a_missing_part_is_named(tmp_path: Path, lost: str) -> None:
    folder = write_engine(tmp_path / "bin")
    (folder / lost).unlink()
    with pytest.raises(ArtifactError, match=f"{lost.removesuffix('.5.0')} is missing"):
        pack_engine(folder, tmp_path / "t.tar.gz", pin_for(FOREIGN), variants=("x64", "haswell"))


def test_an_engine_without_a_back_end_is_refused(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "bin")
    for path in folder.glob("libggml-cpu-*"):
        path.unlink()
    with pytest.raises(ArtifactError, match="without a CPU back end"):
        pack_engine(folder, tmp_path / "t.tar.gz", pin_for(FOREIGN))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "bin", arch=platform.machine())
    with pytest.raises(ArtifactError, match=f"is for {platform.machine()}, wanted {FOREIGN}"):
        pack_engine(folder, tmp_path / "t.tar.gz", pin_for(FOREIGN))


@pytest.mark.parametrize(("arch", "page_size"), [("aarch64", 4096), ("x86_64", 1024)])
def test_an_engine_for_smaller_pages_is_refused(
    tmp_path: Path, arch: str, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "none of both")  # nothing is started
    folder = write_engine(tmp_path / "bin", arch, page_size=page_size)
    with pytest.raises(ArtifactError, match=r"libggml-cpu-\w+\.so .* pages of \d KiB"):
        pack_engine(folder, tmp_path / "t.tar.gz", pin_for(arch))


def native_engine(folder: Path) -> Path:
    """This Python as a llama-server: it starts, and says its version."""
    folder.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), folder / "llama-server")
    shutil.copy(markupsafe._speedups.__file__, folder / "libggml-cpu-x64.so")
    return folder


def test_the_engine_must_start_and_name_its_build(tmp_path: Path) -> None:
    folder = native_engine(tmp_path / "bin")
    own = tuple(map(int, platform.libc_ver()[1].split(".")))
    pin = pin_for(platform.machine(), glibc_floor=own, build=sys.version_info.minor)
    pack_engine(folder, tmp_path / "t.tar.gz", pin)
    with pytest.raises(ArtifactError, match="does not name build 11312: 'Python 3"):
        pack_engine(folder, tmp_path / "t.tar.gz", dataclasses.replace(pin, build=11312))


def test_a_missing_compiler_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for arch, package in ((platform.machine(), "g++`"), (FOREIGN, f"g++-{FOREIGN}-linux-gnu`")):
        (pin,) = candidates("build", arch)
        with pytest.raises(ArtifactError) as error:
            fetch_engine(pin, cache=Cache(tmp_path / "cache"), progress=SilentProgress())
        assert f"apt install {package.replace('_', '-')}" in str(error.value)


# Releases


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def release(tmp_path: Path) -> tuple[EnginePin, bytes]:
    """A release tarball as the project publishes it, and the pin of it."""
    write_engine(tmp_path / "release" / "llama-b11541")
    tarball = tmp_path / "release.tar.gz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(tmp_path / "release" / "llama-b11541", "llama-b11541")
    body = tarball.read_bytes()
    pin = pin_for(
        FOREIGN,
        kind="release",
        build=11541,
        release_id="b11541-release",
        url="https://releases.example/download/b11541/llama-b11541-bin.tar.gz",
        sha256=hashlib.sha256(body).hexdigest(),
    )
    return pin, body


def test_a_release_from_a_mirror(
    tmp_path: Path, server: Server, release: tuple[EnginePin, bytes]
) -> None:
    pin, body = release
    server.replies["/mirror/b11541/llama-b11541-bin.tar.gz"] = Reply(body, cuts=[300])
    cache, other = Cache(tmp_path / "cache"), Cache(tmp_path / "other")
    assert cached_engine(pin, cache) is None
    artifact = fetch_engine(
        pin, cache=cache, progress=SilentProgress(), release_base_url=f"{server.url}/mirror/"
    )
    assert artifact.release_id == "b11541-release"
    assert artifact.size_bytes == artifact.path.stat().st_size
    assert artifact.sha256 == hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    assert engine_json(artifact.path)["kind"] == "release"

    server.asked.clear()
    (cache.root / "blobs" / str(pin.sha256)).unlink()  # so that only the packed one is left
    assert cached_engine(pin, cache) == artifact
    assert fetch_engine(pin, cache=cache, progress=SilentProgress()) == artifact
    assert server.asked == []

    mirror = tmp_path / "mirror" / "b11541"
    mirror.mkdir(parents=True)
    (mirror / "llama-b11541-bin.tar.gz").write_bytes(body)
    again = fetch_engine(
        pin, cache=other, progress=SilentProgress(), release_base_url=mirror.parent.as_uri()
    )
    assert again.sha256 == artifact.sha256


def test_a_mirror_with_another_file(
    tmp_path: Path, server: Server, release: tuple[EnginePin, bytes]
) -> None:
    pin, _body = release
    server.replies["/b11541/llama-b11541-bin.tar.gz"] = Reply(b"<html>moved</html>")
    cache = Cache(tmp_path / "cache")
    with pytest.raises(ArtifactError) as error:
        fetch_engine(pin, cache=cache, progress=SilentProgress(), release_base_url=server.url)
    for part in ("it is a web page", "engine_release_base_url", "engine_source", str(pin.sha256)):
        assert part in str(error.value)
    assert cached_engine(pin, cache) is None
    assert list((cache.root / "blobs").glob("*")) == []
