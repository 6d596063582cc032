"""What a host is: one script, read in one round trip, parsed into a frozen `Survey`.

`SCRIPT` is POSIX sh, needs neither python nor root for most of it, and writes nothing. Run it as
root to see the digests of secrets, the environment of running services and the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")

MIB = 1024 * 1024
MANIFEST_FORMAT = 1
OVERRIDE = re.compile(r"^/(etc|run)/systemd/system(\.control)?/[^/]+\.d/")


class SurveyError(Exception):
    """The script's output is not a survey (cut off, or a host without a POSIX shell)."""


@dataclass(frozen=True)
class Cpu:
    """One logical CPU."""

    id: int
    core: int
    package: int
    node: int
    online: bool


@dataclass(frozen=True)
class CpufreqPolicy:
    """One cpufreq policy; empty strings and tuples where the driver offers no such thing."""

    id: int
    driver: str
    governor: str
    governors: tuple[str, ...]
    epp: str
    epps: tuple[str, ...]


@dataclass(frozen=True)
class IdleState:
    """One cpuidle state of CPU 0."""

    index: int
    name: str
    latency_us: int
    disabled: bool


@dataclass(frozen=True)
class Disk:
    """Free space where edge-llm writes."""

    path: str
    free_bytes: int
    mount: str
    writable: bool


@dataclass(frozen=True)
class StoredModel:
    """A file under /opt/edge-llm/models."""

    path: str
    size_bytes: int
    mtime: int
    stamp: str
    """`sha256:size:mtime` as it was when the file was verified; empty where it never was."""

    @property
    def verified_sha256(self) -> str:
        """The digest that was verified, if size and time of the file still agree; else empty."""
        sha256, _, rest = self.stamp.partition(":")
        return sha256 if rest == f"{self.size_bytes}:{self.mtime}" else ""


@dataclass(frozen=True)
class FileState:
    """A managed (or foreign) file in a place that edge-llm manages."""

    sha256: str
    mode: str
    owner: str


@dataclass(frozen=True)
class Running:
    """A service's main process, and the digest of the configuration that it was started with."""

    pid: int
    digest: str
    stale: bool = False
    """Whether the model that it has mapped is no longer the file at that path."""


@dataclass(frozen=True)
class Installed:
    """What edge-llm has left on the host."""

    manifest: Mapping[str, Any] | None
    engine_releases: frozenset[str]
    proxy_releases: frozenset[str]
    engine_current: str
    proxy_current: str
    models: tuple[StoredModel, ...]
    files: Mapping[str, FileState]
    units: Mapping[str, Mapping[str, str]]
    running: Mapping[str, Running]

    @property
    def overrides(self) -> tuple[str, ...]:
        """Drop-ins of our units, which change what our own files say."""
        return tuple(sorted(path for path in self.files if OVERRIDE.search(path)))


@dataclass(frozen=True)
class Survey:
    """A host as it was found. Sizes in bytes."""

    os_id: str
    os_version: str
    os_name: str
    arch: str
    """As `uname -m`; "aarch64 with a 32-bit userland" where programs are not of the kernel's kind
    (Raspberry Pi OS 32-bit)."""
    kernel: str
    page_size: int
    glibc: tuple[int, int] | None
    boot_id: str
    uid: int
    cpu_vendor: str
    cpu_model: str
    cpu_flags: frozenset[str]
    cpus: tuple[Cpu, ...]
    node_memory: Mapping[int, int]
    memory_total: int
    memory_available: int
    swap_total: int
    disks: Mapping[str, Disk]
    dt_model: str
    dmi: Mapping[str, str]
    cpufreq: tuple[CpufreqPolicy, ...]
    idle_driver: str
    idle_states: tuple[IdleState, ...]
    cmdline: str
    boot_loader: str
    """raspberrypi, armbian, extlinux, systemd-boot, grub, or unknown."""
    cmdline_txt: str
    cgroup_version: int
    cgroup_controllers: frozenset[str]
    systemd: int
    init: str
    rivals: Mapping[str, str]
    """Running or enabled power daemons: unit name to its state, as "active, enabled"."""
    throttled: int | None
    tools: frozenset[str]
    python: str
    libgomp: bool
    installed: Installed
    unreadable: tuple[str, ...] = field(default=())
    grub_cmdline: str = ""
    """Kernel parameters of the first entry in grub.cfg: what the next boot will use."""
    account: bool = False
    """Whether the system user edge-llm exists."""
    journald_stale: bool = False
    """Whether journald runs since before its drop-in was written."""

    @property
    def physical_cores(self) -> int:
        """Physical cores that are online."""
        return len({(cpu.package, cpu.core) for cpu in self.cpus if cpu.online})

    @property
    def is_raspberry_pi(self) -> bool:
        """Known by the device tree, not by the distribution's name."""
        return self.dt_model.startswith("Raspberry Pi")


def parse(text: str) -> Survey:
    """Parse the output of `SCRIPT`.

    Raises:
        SurveyError: the output is cut off, or is not this script's.
    """
    sections = _sections(text)
    if "unreadable" not in sections:
        raise SurveyError(
            "the survey came back incomplete: its last section is missing "
            f"(got {len(text)} characters, sections: {', '.join(sections) or 'none'})"
        )
    try:
        return _survey(sections)
    except (KeyError, ValueError, IndexError) as error:
        raise SurveyError(f"the survey holds something unexpected: {error!r}") from error


def _survey(sections: dict[str, list[str]]) -> Survey:
    one = _Reader(sections)
    os_release = _assignments(sections["os"])
    cpuinfo = _colons(sections["cpuinfo"])
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in sections["memory"]}
    idle = [line.split(" ", 4) for line in sections["cpuidle"]]
    cgroup = sections["cgroup"]
    systemd_version = re.search(r"systemd (\d+)", one.line("systemd"))
    throttled = re.search(r"throttled=(0x[0-9a-fA-F]+)", one.line("throttled"))
    cpus = sorted((_cpu(line) for line in sections["cpus"]), key=lambda cpu: cpu.id)
    node_memory = {int(node): int(kib) * 1024 for node, kib in map(str.split, sections["numa"])}
    if "numa=fake" in one.line("cmdline"):
        # The Pi 5's firmware splits its memory into eight emulated nodes, for speed. Every CPU is
        # in all of them: there is nothing to choose.
        cpus = [replace(cpu, node=0) for cpu in cpus]
        node_memory = {0: sum(node_memory.values())}
    return Survey(
        os_id=os_release.get("ID", ""),
        os_version=os_release.get("VERSION_ID", ""),
        os_name=os_release.get("PRETTY_NAME", ""),
        arch=one.line("kernel")
        + (" with a 32-bit userland" if one.line("kernel", 2) == "32" else ""),
        kernel=one.line("kernel", 1),
        page_size=int(one.line("page_size") or 4096),
        glibc=_version(one.line("glibc")),
        boot_id=one.line("boot_id"),
        uid=int(one.line("user") or -1),
        cpu_vendor=cpuinfo.get("vendor_id", cpuinfo.get("CPU implementer", "")),
        cpu_model=cpuinfo.get("model name", ""),
        cpu_flags=frozenset(cpuinfo.get("flags", cpuinfo.get("Features", "")).split()),
        cpus=tuple(cpus),
        node_memory=node_memory,
        memory_total=memory["MemTotal"],
        memory_available=memory.get("MemAvailable", memory["MemTotal"]),
        swap_total=memory.get("SwapTotal", 0),
        disks={disk.path: disk for disk in map(_disk, sections["disk"])},
        dt_model=one.line("dt_model"),
        dmi={k: v.strip() for k, _, v in (line.partition(" ") for line in sections["dmi"])},
        cpufreq=tuple(_policy(line) for line in sections["cpufreq"]),
        idle_driver=next((row[1] for row in idle if row[0] == "driver"), "none"),
        idle_states=tuple(
            IdleState(int(row[1]), row[4], int(row[2]), row[3] != "0")
            for row in idle
            if row[0] == "state"
        ),
        cmdline=one.line("cmdline"),
        boot_loader=one.line("boot") or "unknown",
        cmdline_txt="\n".join(sections.get("cmdline_txt", [])),
        cgroup_version=2 if cgroup[:1] == ["v2"] else 1,
        cgroup_controllers=frozenset(" ".join(cgroup[1:]).split()),
        systemd=int(systemd_version.group(1)) if systemd_version else 0,
        init=one.line("systemd", 1),
        rivals=_rivals(sections["rivals"]),
        throttled=int(throttled.group(1), 16) if throttled else None,
        tools=frozenset(sections["tools"]),
        python=one.line("python"),
        libgomp=bool(one.line("libgomp")),
        installed=_installed(sections),
        unreadable=tuple(sections["unreadable"]),
        grub_cmdline=one.line("grub_cfg"),
        account=bool(one.line("account")),
        journald_stale=_journald_stale(sections.get("journald", ())),
    )


class _Reader:
    def __init__(self, sections: Mapping[str, Sequence[str]]) -> None:
        self._sections = sections

    def line(self, name: str, index: int = 0) -> str:
        lines = self._sections.get(name, ())
        return lines[index].strip() if index < len(lines) else ""


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("@@"):
            lines = sections.setdefault(line[2:].strip(), [])
        elif line.strip():
            lines.append(line)
    return sections


def _assignments(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip("\"'") for key, _, value in pairs}


def _colons(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else None


def _cpu(line: str) -> Cpu:
    number, core, package, node, online = map(int, line.split())
    return Cpu(number, core, package, node, online == 1)


def _disk(line: str) -> Disk:
    path, free_kib, mount, access = line.split()
    return Disk(path, int(free_kib) * 1024, mount, access == "rw")


def _policy(line: str) -> CpufreqPolicy:
    number, driver, governor, governors, epp, epps = (
        "" if part == "-" else part for part in line.split()
    )
    return CpufreqPolicy(
        int(number),
        driver,
        governor,
        tuple(filter(None, governors.split(","))),
        epp,
        tuple(filter(None, epps.split(","))),
    )


def _units(lines: Sequence[str]) -> dict[str, dict[str, str]]:
    """`systemctl show` of several units, with `--` between them."""
    units = {}
    for block in "\n".join(lines).split("\n--\n"):
        unit = _assignments(block.splitlines())
        if unit.get("LoadState", "not-found") != "not-found":
            units[unit["Id"]] = unit
    return units


def _rivals(lines: Sequence[str]) -> dict[str, str]:
    found = {}
    for name, unit in _units(lines).items():
        states = (unit.get("ActiveState", ""), unit.get("UnitFileState", ""))
        if "active" in states or "enabled" in states:
            found[name] = ", ".join(states)
    return found


def _journald_stale(lines: Sequence[str]) -> bool:
    if len(lines) != 2 or not all(line.strip().isdigit() for line in lines):
        return False
    started, written = map(int, lines)
    return started < written


def _installed(sections: Mapping[str, list[str]]) -> Installed:
    releases = [line.split(" ", 1) for line in sections["releases"]]
    current = {kind: target.rsplit("/", 1)[-1] for kind, target in releases}
    files = {}
    for line in sections["files"]:
        sha256, mode, owner, path = line.split(" ", 3)
        files[path] = FileState(sha256, mode, owner)
    running = {}
    for line in sections["running"]:
        unit, pid, digest, *stale = line.split()
        running[unit] = Running(int(pid), "" if digest == "-" else digest, bool(stale))
    return Installed(
        manifest=_manifest("\n".join(sections["manifest"])),
        engine_releases=frozenset(name for kind, name in releases if kind == "engine"),
        proxy_releases=frozenset(name for kind, name in releases if kind == "proxy"),
        engine_current=current.get("engine-current", ""),
        proxy_current=current.get("proxy-current", ""),
        models=tuple(_model(line) for line in sections["models"]),
        files=files,
        units=_units(sections["units"]),
        running=running,
    )


def _manifest(text: str) -> Mapping[str, Any] | None:
    """The manifest, or None where there is none or it is not readable as one (it is rewritten)."""
    try:
        manifest = json.loads(text)
    except ValueError:
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != MANIFEST_FORMAT:
        return None
    return manifest


def _model(line: str) -> StoredModel:
    size, mtime, rest = line.split(" ", 2)
    path, _, stamp = rest.rpartition(" ")
    return StoredModel(path, int(size), int(mtime), "" if stamp == "-" else stamp)
