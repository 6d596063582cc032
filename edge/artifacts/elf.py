"""What a binary asks of the host it will run on, read from its ELF headers.

Pure Python, so that a controller can check an aarch64 engine without aarch64 tools, and a
release without binutils.
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.errors import ArtifactError

#: Page sizes that an engine and a proxy of ours run with. A Pi 5's kernel has 16 KiB.
PAGE_SIZES = {"x86_64": (4096,), "aarch64": (4096, 16384)}

_MAGIC = b"\x7fELF"
_MACHINES = {62: "x86_64", 183: "aarch64"}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True)
class ElfInfo:
    """One program or shared library."""

    arch: str
    soname: str | None
    needed: tuple[str, ...]
    versions: frozenset[str]  # of the symbols it takes from others: "GLIBC_2.34", …
    page_size: int  # the largest, in bytes, with which it can be loaded

    def floor(self, prefix: str) -> tuple[int, ...]:
        """The highest version asked for of `prefix` ("GLIBC", "GLIBCXX"); () for none."""
        numbers = (re.fullmatch(rf"{prefix}_([0-9.]+)", version) for version in self.versions)
        found = [tuple(int(part) for part in match[1].split(".")) for match in numbers if match]
        return max(found, default=())


def is_elf(path: Path) -> bool:
    """Whether the file begins as an ELF file does."""
    with path.open("rb") as stream:
        return stream.read(4) == _MAGIC


def check_page_size(what: str, page_size: int, arch: str) -> None:
    """Raise ArtifactError, naming `what`, unless it loads with every page size of `arch`."""
    wanted = max(PAGE_SIZES[arch])
    if page_size < wanted:
        raise ArtifactError(
            f"{what} is aligned for pages of {page_size // 1024} KiB, and hosts of {arch} may have "
            f"{wanted // 1024} KiB (a Raspberry Pi 5 has): it would not load there"
        )


def check_wheel(wheel: Path, arch: str) -> None:
    """Raise ArtifactError unless every library in a wheel loads with every page size of `arch`."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                if stream.read(len(_MAGIC)) != _MAGIC:
                    continue
            what = f"{member.filename} in {wheel.name}"
            try:
                page_size = _page_size(_segments(archive.read(member)))
            except (struct.error, ValueError) as error:
                raise ArtifactError(f"{what} is no library for Linux: {error}") from error
            check_page_size(what, page_size, arch)


def read_elf(path: Path) -> ElfInfo:
    """Read one 64-bit little-endian ELF file. Raises ArtifactError for anything else."""
    data = path.read_bytes()
    try:
        return _read(data)
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise ArtifactError(f"{path} is not a program or library for Linux: {error}") from error


def _segments(data: bytes) -> list[tuple[int, ...]]:
    """Each program header: type, flags, offset, address, physical, size, in memory, alignment."""
    if data[:6] != _MAGIC + b"\x02\x01":
        raise ValueError("no 64-bit little-endian ELF header")
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, entries = struct.unpack_from("<HH", data, 54)
    return [struct.unpack_from("<IIQQQQQQ", data, table + n * entry_size) for n in range(entries)]


def _page_size(segments: list[tuple[int, ...]]) -> int:
    # The loader refuses a segment whose alignment is no multiple of the page size. An object
    # file has none, and is never loaded.
    alignments = (alignment for kind, *_, alignment in segments if kind == _PT_LOAD)
    return min(alignments, default=max(map(max, PAGE_SIZES.values())))


def _read(data: bytes) -> ElfInfo:
    segments = _segments(data)
    (machine,) = struct.unpack_from("<H", data, 18)

    def offset_of(address: int) -> int:
        for kind, _flags, offset, start, _physical, size, *_rest in segments:
            if kind == _PT_LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise ValueError(f"address {address:#x} is in no segment")

    tags: list[tuple[int, int]] = []
    for kind, _flags, offset, *_rest in segments:
        if kind == _PT_DYNAMIC:
            while (pair := struct.unpack_from("<qQ", data, offset))[0] != _DT_NULL:
                tags.append(pair)
                offset += 16
    single = dict(tags)
    if _DT_STRTAB not in single:
        raise ValueError("it is not dynamically linked")
    strings = offset_of(single[_DT_STRTAB])

    def text(index: int) -> str:
        return data[strings + index : data.index(b"\0", strings + index)].decode()

    versions = set()
    if _DT_VERNEED in single:
        need = offset_of(single[_DT_VERNEED])
        for _ in range(single[_DT_VERNEEDNUM]):
            _version, count, _file, first, next_need = struct.unpack_from("<HHIII", data, need)
            aux = need + first
            for _ in range(count):
                _hash, _flags2, _other, name, next_aux = struct.unpack_from("<IHHII", data, aux)
                versions.add(text(name))
                aux += next_aux
            need += next_need
    return ElfInfo(
        arch=_MACHINES[machine],
        soname=text(single[_DT_SONAME]) if _DT_SONAME in single else None,
        needed=tuple(text(value) for tag, value in tags if tag == _DT_NEEDED),
        versions=frozenset(versions),
        page_size=_page_size(segments),
    )
