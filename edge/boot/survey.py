"""The sections of the survey that tell how a host boots, parsed."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from edge.boot.files import BootFile, BootMount, BootSurvey, GrubConfig, to_text


def parse_boot(sections: Mapping[str, Sequence[str]]) -> BootSurvey:
    """From the lines of the sections boot, boot_mounts, grub_cfg and boot_files.

    Raises:
        ValueError: a line is none that the script prints.
        KeyError: a section is missing.
    """
    told: dict[str, list[str]] = {}
    for line in sections["boot"]:
        name, _, value = line.strip().partition(" ")
        told.setdefault(name, []).append(value)
    mounts = {}
    for line in sections["boot_mounts"]:
        folder, free_kib, mount, access = line.split()
        mounts[folder] = BootMount(mount, int(free_kib) * 1024, access == "rw")
    files = {}
    for line in sections["boot_files"]:
        size, content, path = line.split(" ", 2)
        files[path] = BootFile(path, _decoded(content), int(size))
    evidence = ("efi", "LoaderInfo", "StubInfo", "u-boot,version", "os_prefix")
    return BootSurvey(
        evidence={name: told[name][0].strip() for name in evidence if name in told},
        config_txt=tuple(told.get("config_txt", ())),
        files=files,
        folders=frozenset(told.get("folder", ())),
        tools={name: path for name, _, path in (t.partition(" ") for t in told.get("tool", ()))},
        drop_ins_read_by=frozenset(told.get("drop-ins", ())),
        grub=tuple(_grub(line) for line in sections["grub_cfg"]),
        mounts=mounts,
    )


def _grub(line: str) -> GrubConfig:
    kind, content, path = line.split(" ", 2)
    entries = (entry.split(None, 1) for entry in _decoded(content).split("\n"))
    return GrubConfig(path, tuple(entry[1] for entry in entries if len(entry) == 2), kind == "bls")


def _decoded(text: str) -> str:
    return to_text(base64.b64decode(text, validate=True))
