"""The survey: one script, read in one round trip, parsed into a frozen `Survey`.

`SCRIPT` is POSIX sh, needs neither python nor root for most of it, and writes nothing. Run it as
root to see the digests of secrets, the environment of running services and the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.boot.survey import parse_boot
from edge.mark import SAY, after
from edge.survey import (
    Cpu,
    CpufreqPolicy,
    Disk,
    FileState,
    IdleState,
    Installed,
    KernelFile,
    Running,
    StoredModel,
    Survey,
    Swap,
    Watchdog,
)

SCRIPT = SAY + Path(__file__).with_name("survey.sh").read_text(encoding="utf-8")
MANIFEST_FORMAT = 1
RELEASE = re.compile(r"(engine|proxy)(-current)? \S")
MODEL = re.compile(r"\d+ \d+ /.* \S+$")
FOLDER = re.compile(r"[0-7]+ \S+ /")
FILE = re.compile(r"[0-9a-f]{64} \d+ \S+ /")


class SurveyError(Exception):
    """The script's output is not a survey (cut off, or a host without a POSIX shell)."""


def parse(text: str) -> Survey:
    """Parse the output of `SCRIPT`; what the login shell has said before it is dropped.

    Raises:
        SurveyError: the output is cut off, or is not this script's.
    """
    sections = _sections(after(text))
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
    idle_driver, idle_states = _idle(sections["cpuidle"])
    known_driver, known_states = _idle(sections.get("known_idle", ()))
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
        idle_driver=idle_driver or "none",
        idle_states=idle_states,
        cmdline=one.line("cmdline"),
        boot=parse_boot(sections),
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
        account=bool(one.line("account")),
        journald_stale=_journald_stale(sections.get("journald", ())),
        knob_files=dict(map(_kernel_file, sections.get("knobs", ()))),
        known_idle_driver=known_driver,
        known_idle_states=known_states,
        swaps=_swaps(sections.get("swaps", ())),
        zram=bool(one.line("zram")),
        watchdogs=tuple(
            Watchdog(device, identity, int(most))
            for _, device, most, identity in (
                line.split(" ", 3)
                for line in sections.get("watchdog", ())
                if line.startswith("device ")
            )
        ),
        runtime_watchdog_s=next(
            (
                seconds(line.removeprefix("runtime").strip())
                for line in sections.get("watchdog", ())
                if line.startswith("runtime")
            ),
            0,
        ),
    )


def seconds(timespan: str) -> float:
    """systemd's words for a time, as "1min 30s"; 0 for none at all, and for ever."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    parts = re.findall(r"([\d.]+)(us|ms|min|s|h)\b", timespan)
    return sum(float(number) * units[unit] for number, unit in parts)


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
    path, free_kib, mount, access, *times = line.split()
    return Disk(path, int(free_kib) * 1024, mount, access == "rw", "".join(times))


def _idle(lines: Sequence[str]) -> tuple[str, tuple[IdleState, ...]]:
    """The driver, and the states of CPU 0 and of each CPU that differs from it."""
    driver, cpu, states = "", 0, []
    for kind, value, *rest in (line.split(" ", 4) for line in lines):
        if kind == "driver":
            driver = value
        elif kind == "cpu":
            cpu = int(value)
        else:
            latency, disabled, name = rest
            states.append(IdleState(int(value), name, int(latency), disabled != "0", cpu))
    return driver, tuple(states)


def _kernel_file(line: str) -> tuple[str, KernelFile]:
    """One file that is set: what it holds, and what it may hold where something says so."""
    path, value, choices = line.split("|")
    if found := re.search(r"\[(.*)\]", value):  # one file says both
        return path, KernelFile(found[1], tuple(re.sub(r"[][]", "", value).split()))
    return path, KernelFile(value, tuple(choices.split()) or None)


def _swaps(lines: Sequence[str]) -> tuple[Swap, ...]:
    rows = [line.split() for line in lines]
    ours = {f"/dev/{row[1]}" for row in rows if row[0] == "ours"}
    return tuple(
        Swap(device, int(kib) * 1024, device in ours) for device, kib in rows if device != "ours"
    )


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
    # A name with a line end in it, which is none of ours, gives lines that are none of these.
    releases = [line.split(" ", 1) for line in sections["releases"] if RELEASE.match(line)]
    current = {kind: target.rsplit("/", 1)[-1] for kind, target in releases}
    files = {}
    for line in filter(FILE.match, sections["files"]):
        sha256, mode, owner, path = line.split(" ", 3)
        files[path] = FileState(sha256, mode, owner)
    running = {}
    for line in sections["running"]:
        unit, pid, digest, *more = line.split()
        running[unit] = Running(
            int(pid), "" if digest == "-" else digest, "stale" in more, "other-key" in more
        )
    return Installed(
        manifest=_manifest("\n".join(sections["manifest"])),
        engine_releases=frozenset(name for kind, name in releases if kind == "engine"),
        proxy_releases=frozenset(name for kind, name in releases if kind == "proxy"),
        engine_current=current.get("engine-current", ""),
        proxy_current=current.get("proxy-current", ""),
        models=tuple(_model(line) for line in sections["models"] if MODEL.match(line)),
        files=files,
        units=_units(sections["units"]),
        running=running,
        open_folders=tuple(
            path
            for mode, owner, path in (
                line.split(" ", 2) for line in filter(FOLDER.match, sections.get("folders", ()))
            )
            if not owner.startswith("root:") or int(mode, 8) & 0o022
        ),
        engine_key=sections.get("engine_key") == ["ok"],
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
