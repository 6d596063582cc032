"""What the survey has read of a host's boot files. Pure data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class BootFile:
    """A file as it was read, byte for byte.

    `text` is UTF-8 with surrogates for bytes that are none ("surrogateescape"), line ends as they
    are. `size` (bytes) is what the file system said: where `text` is shorter, it was cut off.
    """

    path: str
    text: str
    size: int

    @cached_property
    def sha256(self) -> str:
        """Of the content, in hexadecimal."""
        return hashlib.sha256(to_bytes(self.text)).hexdigest()

    @property
    def whole(self) -> bool:
        """Whether all of it was read."""
        return len(to_bytes(self.text)) == self.size


@dataclass(frozen=True)
class GrubConfig:
    """One grub.cfg: its entries that start a Linux, without the word `linux`."""

    path: str
    entries: tuple[str, ...]
    uses_entry_files: bool = False
    """Whether it takes its entries from /boot/loader/entries (blscfg)."""


@dataclass(frozen=True)
class BootMount:
    """Where a folder of the boot files is mounted. Bytes."""

    mount: str
    free_bytes: int
    writable: bool
    """By its mount options: root may write where a file's mode does not allow it."""


@dataclass(frozen=True)
class BootSurvey:
    """Everything that tells how a host boots, and with which command line next time."""

    evidence: Mapping[str, str] = field(default_factory=dict)
    """efi, LoaderInfo, StubInfo, u-boot, os_prefix: present only where the host has them."""
    config_txt: tuple[str, ...] = ()
    """Lines of a Raspberry Pi's config.txt that name another command line."""
    files: Mapping[str, BootFile] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    """Those of the folders of drop-ins that exist."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Tool to its path."""
    drop_ins_read_by: frozenset[str] = frozenset()
    """grub, u-boot: whose tool reads a folder of drop-ins."""
    grub: tuple[GrubConfig, ...] = ()
    mounts: Mapping[str, BootMount] = field(default_factory=dict)

    def mount_of(self, path: str) -> BootMount | None:
        """The mount on which `path` lies, of those that were looked at."""
        under = [folder for folder in self.mounts if path.startswith(f"{folder}/")]
        return self.mounts[max(under, key=len)] if under else None

    def below(self, folder: str, suffix: str) -> list[BootFile]:
        """The files right in `folder` whose names end with `suffix`, in order of their names."""
        found = (path for path in self.files if path.rpartition("/")[0] == folder)
        return [self.files[path] for path in sorted(found) if path.endswith(suffix)]


def to_bytes(text: str) -> bytes:
    """The bytes that a file's text stands for."""
    return text.encode("utf-8", "surrogateescape")


def to_text(content: bytes) -> str:
    """A file's bytes as text that loses none of them."""
    return content.decode("utf-8", "surrogateescape")
