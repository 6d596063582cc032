"""What a host is, as frozen dataclasses. `edge.survey_script` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge.boot.files import BootSurvey
from edge.boot.line import words
from edge.boot.loader import CMDLINE_TXT

MIB = 1024 * 1024
MANIFEST_FORMAT = 1
OVERRIDE = re.compile(
    r"^(/(etc|run)/systemd/system(\.control)?|/usr/local/lib/systemd/system)/[^/]+\.d/"
)


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
class KernelFile:
    """A file of the kernel's that holds one of several words."""

    value: str
    choices: tuple[str, ...] | None
    """None: nothing says what may be written."""
    driver: str = ""
    """Of a cpufreq policy."""
    governor: str = ""
    """Of a cpufreq policy, beside its energy preference."""

    def offers(self, word: str) -> bool:
        """Whether it may be set to this."""
        return self.choices is None or word in self.choices


@dataclass(frozen=True)
class IdleState:
    """One cpuidle state of CPU 0, or of a CPU whose states are not as CPU 0's."""

    index: int
    name: str
    latency_us: int
    disabled: bool
    cpu: int = 0


@dataclass(frozen=True)
class Disk:
    """Free space where edge-llm writes."""

    path: str
    free_bytes: int
    mount: str
    writable: bool
    access_times: str = ""
    """noatime, relatime or strictatime, as it is mounted now; empty where that is not known."""


@dataclass(frozen=True)
class Watchdog:
    """A hardware watchdog that the kernel has a driver for."""

    device: str
    identity: str
    max_timeout_s: int
    """0: the driver says none."""


@dataclass(frozen=True)
class Swap:
    """A swap area in use."""

    device: str
    size_bytes: int
    ours: bool


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
    other_key: bool = False
    """Whether it was started with another key of the engine than the one in the file."""


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
    open_folders: tuple[str, ...] = ()
    """Folders of ours in which somebody else than root could put files: root runs what is there."""
    engine_key: bool = False
    """Whether the engine's key is there, whole and closed to others. The key stays on its host."""

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
    boot: BootSurvey
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
    account: bool = False
    """Whether the system user edge-llm exists."""
    journald_stale: bool = False
    """Whether journald runs since before its drop-in was written."""
    knob_files: Mapping[str, KernelFile] = field(default_factory=dict)
    """Files that are set, by path, beside those of the cpufreq policies."""
    known_idle_driver: str = ""
    known_idle_states: tuple[IdleState, ...] = ()
    """The states of CPU 0 before any of ours limited them, as edge-tuning wrote them down."""
    swaps: tuple[Swap, ...] = ()
    zram: bool = False
    """Whether this kernel has zram."""
    watchdogs: tuple[Watchdog, ...] = ()
    runtime_watchdog_s: float = 0
    """After how long without systemd the hardware restarts the host; 0: never."""

    @property
    def kernel_files(self) -> Mapping[str, KernelFile]:
        """Everything that `edge.knobs` may set, by path."""
        files: dict[str, KernelFile] = {}
        for policy in self.cpufreq:
            folder = f"/sys/devices/system/cpu/cpufreq/policy{policy.id}"
            files[f"{folder}/scaling_governor"] = KernelFile(
                policy.governor, policy.governors, policy.driver, policy.governor
            )
            if policy.epp or policy.epps:
                files[f"{folder}/energy_performance_preference"] = KernelFile(
                    policy.epp, policy.epps, policy.driver, policy.governor
                )
        return files | dict(self.knob_files)

    @property
    def physical_cores(self) -> int:
        """Physical cores that are online."""
        return len({(cpu.package, cpu.core) for cpu in self.cpus if cpu.online})

    @property
    def cmdline_txt(self) -> tuple[str, ...]:
        """The kernel parameters in a Raspberry Pi's cmdline.txt, which the next boot uses."""
        files = [self.boot.files[path] for path in CMDLINE_TXT if path in self.boot.files]
        return tuple(word for file in files for word in words(file.text))

    @property
    def is_raspberry_pi(self) -> bool:
        """Known by the device tree, not by the distribution's name."""
        return self.dt_model.startswith("Raspberry Pi")
