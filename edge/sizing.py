"""How many cores and how much memory: the arithmetic under a plan. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from edge.model_info import ModelInfo
from edge.survey import MIB, Cpu, Survey

# Memory of llama-server itself, apart from model and buffers: program, allocator, HTTP threads.
ENGINE_BASE = 64 * MIB
# Weights that are repacked for SIMD are anonymous memory while their file pages are still mapped;
# of Qwen2.5-0.5B's 469 MiB, RSS was 1.35 x the file. The surplus is reclaimable, so a part of it.
WEIGHTS_MARGIN = 0.25
# What the operating system, sshd, the journal and the proxy keep for themselves.
SYSTEM_RESERVE = 384 * MIB
PROXY_MEMORY_MAX = 192 * MIB
DEFAULT_MEMORY_MAX = 1144 * MIB  # the recipe's 1.2 GB
FLOAT = 4


@dataclass(frozen=True)
class MemoryNeed:
    """What the engine needs, part by part, in bytes."""

    weights: int
    kv: int
    buffers: int
    cache: int
    base: int
    margin: int

    @property
    def total(self) -> int:
        """Smallest memory limit under which the engine runs at full speed."""
        return self.weights + self.kv + self.buffers + self.cache + self.base + self.margin

    def __str__(self) -> str:
        parts = ("weights", "kv", "buffers", "cache", "base", "margin")
        return " + ".join(f"{part} {mib(getattr(self, part))}" for part in parts) + " MiB"


def mib(size: int) -> int:
    """Bytes as MiB, rounded up."""
    return -(-size // MIB)


def memory_need(
    model: ModelInfo, *, slots: int, context_per_slot: int, cache_ram_mib: int, ubatch_size: int
) -> MemoryNeed:
    """Memory for a model with that many slots and that context.

    Buffers: the logits of one micro-batch (vocabulary x ubatch x 4 bytes; measured 74 MiB at 128
    and 297 MiB at 512 for a vocabulary of 151936), and the widest activations of a layer.
    """
    logits = model.vocab_size * ubatch_size * FLOAT
    activations = ubatch_size * FLOAT * (4 * model.embedding_length + 2 * model.feed_forward_length)
    return MemoryNeed(
        weights=model.size_bytes,
        kv=model.kv_bytes_per_token * context_per_slot * slots,
        buffers=logits + activations,
        cache=cache_ram_mib * MIB,
        base=ENGINE_BASE,
        margin=int(model.size_bytes * WEIGHTS_MARGIN),
    )


@dataclass(frozen=True)
class CpuChoice:
    """The engine's logical CPUs, one a physical core, and the NUMA node if they share one."""

    cpus: tuple[int, ...]
    node: int | None
    reason: str


def cores(survey: Survey) -> list[Cpu]:
    """One logical CPU for each physical core that is online: the lowest-numbered sibling."""
    chosen: dict[tuple[int, int], Cpu] = {}
    for cpu in survey.cpus:
        if cpu.online:
            chosen.setdefault((cpu.package, cpu.core), cpu)
    return sorted(chosen.values(), key=lambda cpu: cpu.id)


def most_threads(survey: Survey, system_cores: int, need: int) -> tuple[int, int | None]:
    """Most threads that do not leave their NUMA node, and the node (None with one node only).

    A node counts if it has `need` bytes of memory; where none has, all free cores do.
    """
    free = cores(survey)[system_cores:]
    if len(survey.node_memory) < 2:
        return len(free), None
    nodes = Counter(cpu.node for cpu in free if survey.node_memory.get(cpu.node, 0) >= need)
    if not nodes:
        return len(free), None
    node = min(nodes, key=lambda node: (-nodes[node], node))
    return nodes[node], node


def choose_cpus(survey: Survey, threads: int, system_cores: int, need: int) -> CpuChoice:
    """The cores for `threads` engine threads, after the first `system_cores` are kept back.

    CPU 0 takes most interrupts, so the system's cores are the first. On a machine with several
    NUMA nodes all threads stay on the node with the most free cores, if `threads` of them and
    `need` bytes of memory are there.
    """
    free = cores(survey)[system_cores:]
    nodes: dict[int, list[Cpu]] = {}
    for cpu in free:
        nodes.setdefault(cpu.node, []).append(cpu)
    kept = f"{system_cores} of {survey.physical_cores} cores kept for the system"
    if len(survey.node_memory) < 2:
        chosen = tuple(cpu.id for cpu in free[:threads])
        return CpuChoice(chosen, None, f"one logical CPU a physical core; {kept}")
    for node, members in sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(members) >= threads and survey.node_memory.get(node, 0) >= need:
            chosen = tuple(cpu.id for cpu in members[:threads])
            return CpuChoice(chosen, node, f"all on NUMA node {node}; {kept}")
    chosen = tuple(cpu.id for cpu in free[:threads])
    return CpuChoice(
        chosen, None, f"across NUMA nodes: no node has {threads} free cores and "
        f"{mib(need)} MiB; {kept}"
    )  # fmt: skip
