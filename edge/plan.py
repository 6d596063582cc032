"""The plan: everything that a host will run with, as frozen dataclasses.

`edge.solver` works it out once. Steps apply it, templates render it, the verification asserts it,
`edge plan` prints it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from edge.boot import BootPlan
from edge.keys import ApiKey
from edge.reboot import RebootPlan
from edge.sizing import MemoryNeed
from edge.tuning import TuningPlan

ROOT = "/opt/edge-llm"
ETC = "/etc/edge-llm"
STATE = "/var/lib/edge-llm"
ENGINE_HOST = "127.0.0.1"
LONGEST_NAME = 200  # of 255 bytes: ".part.pid" is added to it


@dataclass(frozen=True)
class EnginePlan:
    """How llama-server runs on a host."""

    release_id: str
    build: int
    kind: str
    threads: int
    cpus: tuple[int, ...]
    numa_node: int | None
    slots: int
    context_per_slot: int
    context_total: int
    cache_ram_mib: int
    batch_size: int
    ubatch_size: int
    flash_attention: str
    port: int

    @property
    def flags(self) -> dict[str, str]:
        """llama-server's flags but for the model; an empty value is a switch. Host, port, slots,
        context and cache are always passed: their defaults differ from build to build."""
        return {
            "--host": ENGINE_HOST,
            "--port": str(self.port),
            "--threads": str(self.threads),
            "--threads-batch": str(self.threads),
            "--ctx-size": str(self.context_total),
            "--parallel": str(self.slots),
            "--batch-size": str(self.batch_size),
            "--ubatch-size": str(self.ubatch_size),
            "--flash-attn": self.flash_attention,
            "--cache-ram": str(self.cache_ram_mib),
            "--log-verbosity": "2",
            # No browser's page has this origin; the default lets every page read the answers.
            "--cors-origins": "none",
            "--no-cors-credentials": "",
            "--metrics": "",
            "--no-ui": "",
            "--offline": "",
        }

    @property
    def args(self) -> tuple[str, ...]:
        """The flags as words of a command line."""
        return tuple(word for pair in self.flags.items() for word in pair if word)


@dataclass(frozen=True)
class LimitsPlan:
    """Resource limits, in systemd's units: percent of one core, weights, bytes."""

    cpu_quota_percent: int
    cpu_weight: int
    io_weight: int
    memory_need: MemoryNeed
    memory_high: int
    memory_max: int
    proxy_memory_max: int


@dataclass(frozen=True)
class ModelPlan:
    """The model, and where it lies on the host."""

    source: str
    sha256: str
    size_bytes: int
    file_name: str
    name: str
    description: str

    @property
    def path(self) -> str:
        """Path on the host; the folder is named by the digest, so a new model is a new path.

        Of the file's name, what a shell, a line of text or a glob would take for something else
        becomes "_", and dots that would hide it are left out.
        """
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", self.file_name).lstrip(".")
        return f"{ROOT}/models/{self.sha256[:16]}/{plain[-LONGEST_NAME:].lstrip('.') or 'model'}"


@dataclass(frozen=True)
class ProxyPlan:
    """How the chat proxy runs on a host."""

    release_id: str
    python: str
    listen: str
    port: int
    temperature: float
    max_tokens: int
    system_prompt: str
    queue_limit: int
    keys: tuple[ApiKey, ...] | None
    """Who may ask; None: no keys are asked for."""
    cors_origins: tuple[str, ...]


@dataclass(frozen=True)
class HostPlan:
    """Everything that a host will run with."""

    host: str
    hardware: str
    arch: str
    engine: EnginePlan
    limits: LimitsPlan
    model: ModelPlan
    proxy: ProxyPlan
    tuning: TuningPlan
    boot: BootPlan
    reboot: RebootPlan
    journal_max_mib: int
    gate_timeout_s: int
    reasons: dict[str, str]
    """Why each number is what it is, by name."""
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data (for --json); of keys the names only."""
        data = asdict(self)
        if self.proxy.keys is not None:
            data["proxy"]["keys"] = [key.name for key in self.proxy.keys]
        return data
