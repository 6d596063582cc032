"""The proxy's bundle, with wheels that are made here and served by pip's own find-links."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from edge.artifacts import ArtifactError, Cache, SilentProgress, fetch_proxy, proxy_release_id
from edge.artifacts import proxy as proxy_module
from edge.artifacts.elf import check_wheel


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    tag: str = "py3-none-any",
    library: bytes | None = None,
) -> str:
    """A wheel, empty but for a native library if there is one; gives its line in a lock."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
        if library is not None:
            wheel.writestr(f"{name}/_speedups.so", library)
    return f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "chat_proxy"
    (folder / "static").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "app.py").write_text("print('hello')\n")
    (folder / "static" / "index.html").write_text("<h1>chat</h1>\n")
    (folder / "requirements.in").write_text("old\nnew\n")
    return folder


@pytest.fixture
def lock(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock with markers, and an index of wheels for several Pythons and machines."""
    index = tmp_path / "index"
    index.mkdir()
    fast = [
        write_wheel(index, "fast", "1.0", f"{python}-{python}-manylinux_2_28_{arch}")
        for python in ("cp310", "cp311")
        for arch in ("x86_64", "aarch64")
    ]
    old, new = write_wheel(index, "dep", "1.0"), write_wheel(index, "dep", "2.0")
    pip = write_wheel(index, "pip", "26.3")
    monkeypatch.setattr(proxy_module, "_PIP", f"pip==26.3 {pip}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = code / "requirements.lock"
    path.write_text(
        f"dep==1.0 ; python_full_version < '3.11' \\\n    {old}\n"
        f"dep==2.0 ; python_full_version >= '3.11' \\\n    {new}\n"
        "fast==1.0 \\\n    " + " \\\n    ".join(fast) + "\n"
    )
    return path


def bundle(
    code: Path, lock: Path, cache: Cache, python: str = "3.11", arch: str = "x86_64"
) -> Path:
    return fetch_proxy(code, lock, python, arch, cache=cache, progress=SilentProgress()).path


@pytest.mark.parametrize(
    ("python", "arch", "wheels"),
    [
        ("3.11", "x86_64", ["dep-2.0-py3-none-any", "fast-1.0-cp311-cp311-manylinux_2_28_x86_64"]),
        (
            "3.10",
            "aarch64",
            ["dep-1.0-py3-none-any", "fast-1.0-cp310-cp310-manylinux_2_28_aarch64"],
        ),
    ],
)
def test_holds_the_code_and_the_target_s_wheels(
    tmp_path: Path, code: Path, lock: Path, python: str, arch: str, wheels: list[str]
) -> None:
    with tarfile.open(bundle(code, lock, Cache(tmp_path / "cache"), python, arch)) as tar:
        names = sorted(entry.name for entry in tar if entry.isfile())
        facts = tar.extractfile("bundle.json")
        assert facts is not None
        assert json.load(facts) == {
            "python": python,
            "arch": arch,
            "pip": "pip-26.3-py3-none-any.whl",
        }
    assert names == [
        "app/chat_proxy/__init__.py",
        "app/chat_proxy/app.py",
        "app/chat_proxy/static/index.html",
        "bundle.json",
        "requirements.lock",
        *(f"wheels/{name}.whl" for name in [*wheels, "pip-26.3-py3-none-any"]),
    ]


def test_is_made_once_and_the_same_anywhere(
    tmp_path: Path, code: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundle(code, lock, Cache(tmp_path / "one"))
    second = bundle(code, lock, Cache(tmp_path / "two"))
    assert first.name == second.name  # the sha256 of what is in it
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert bundle(code, lock, Cache(tmp_path / "one")) == first


def test_the_name_follows_what_is_in_it(code: Path, lock: Path) -> None:
    name = proxy_release_id(code, lock, "3.11", "x86_64")
    assert name.startswith("p-")
    assert len(name) == 14
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "app.cpython-311.pyc").write_bytes(b"x")
    (code / ".app.py.swp").write_bytes(b"x")
    assert proxy_release_id(code, lock, "3.11", "x86_64") == name
    moved = shutil.copytree(code, code.parent / "elsewhere")
    assert proxy_release_id(moved, moved / lock.name, "3.11", "x86_64") == name

    names = {name, proxy_release_id(code, lock, "3.12", "x86_64")}
    names.add(proxy_release_id(code, lock, "3.11", "aarch64"))
    lock.write_text(lock.read_text() + "# changed\n")
    names.add(proxy_release_id(code, lock, "3.11", "x86_64"))
    (code / "app.py").rename(code / "main.py")
    names.add(proxy_release_id(code, lock, "3.11", "x86_64"))
    (code / "main.py").write_text("print('other')\n")
    names.add(proxy_release_id(code, lock, "3.11", "x86_64"))
    assert len(names) == 6


def test_a_wheel_that_is_not_to_be_had(tmp_path: Path, code: Path, lock: Path) -> None:
    cache = Cache(tmp_path / "cache")
    with pytest.raises(ArtifactError) as error:
        bundle(code, lock, cache, "3.12")
    for part in ("Python 3.12 on x86_64", "fast", "PIP_FIND_LINKS"):
        assert part in str(error.value)
    assert not (cache.root / "proxies").exists()


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, code: Path, lock: Path) -> None:
    lock.write_text(re.sub("sha256:[0-9a-f]{8}", "sha256:00000000", lock.read_text()))
    with pytest.raises(ArtifactError, match="could not collect"):
        bundle(code, lock, Cache(tmp_path / "cache"))


def test_a_broken_lock_is_named(tmp_path: Path, code: Path, lock: Path) -> None:
    lock.write_text("dep = 1.0\n")
    with pytest.raises(ArtifactError, match=r"requirements\.lock cannot be read at 'dep = 1\.0'"):
        bundle(code, lock, Cache(tmp_path / "cache"))


def library(*alignments: int) -> bytes:
    """The start of a native library with one loadable segment for each alignment."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, len(alignments), 0, 0, 0
    )
    return header + b"".join(
        struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, alignment) for alignment in alignments
    )


@pytest.mark.parametrize(
    ("alignments", "arch", "fits"),
    [
        ((0x4000,), "aarch64", True),
        ((0x10000, 0x10000), "aarch64", True),
        ((0x10000, 0x1000), "aarch64", False),
        ((0x2000,), "aarch64", False),
        ((0x1000,), "x86_64", True),
        ((), "aarch64", True),  # an object file: never loaded
    ],
)
def test_a_library_must_load_with_large_pages(
    tmp_path: Path, alignments: tuple[int, ...], arch: str, fits: bool
) -> None:
    tag = f"cp311-cp311-manylinux_2_28_{arch}"
    write_wheel(tmp_path, "fast", "1.0", tag, library(*alignments))
    wheel = tmp_path / f"fast-1.0-{tag}.whl"
    if fits:
        check_wheel(wheel, arch)
    else:
        with pytest.raises(ArtifactError, match=r"fast/_speedups\.so in fast-1\.0.*16 KiB"):
            check_wheel(wheel, arch)


def test_a_wheel_for_small_pages_makes_no_bundle(tmp_path: Path, code: Path, lock: Path) -> None:
    index, tag = tmp_path / "index", "cp311-cp311-manylinux_2_28_aarch64"
    line = write_wheel(index, "fast", "1.0", tag, library(0x1000))
    lock.write_text(f"{lock.read_text().rstrip()} \\\n    {line}\n")
    with pytest.raises(ArtifactError, match="pages of 4 KiB"):
        bundle(code, lock, Cache(tmp_path / "cache"), arch="aarch64")
    assert not list((tmp_path / "cache").rglob("p-*.json"))


def test_what_is_no_library_in_a_wheel_is_named(tmp_path: Path) -> None:
    write_wheel(tmp_path, "fast", "1.0", library=b"\x7fELF\x01\x01 of 32 bits")
    with pytest.raises(ArtifactError, match=r"_speedups\.so in fast-1\.0.*no 64-bit"):
        check_wheel(tmp_path / "fast-1.0-py3-none-any.whl", "aarch64")
