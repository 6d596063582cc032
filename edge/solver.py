"""Settings x Survey x ModelInfo -> HostPlan, or the reasons why not. Pure: no pyinfra, no network.

Every number that a host will run with is decided here, once, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge import access
from edge.artifacts.elf import PAGE_SIZES
from edge.boot import plan_boot
from edge.hardware import DISTRIBUTION_PYTHON, PROXY_PYTHONS, HardwareClass, classify
from edge.keys import ApiKey
from edge.model_info import ModelInfo
from edge.plan import EnginePlan, HostPlan, LimitsPlan, ModelPlan, ProxyPlan
from edge.reboot import plan_reboot
from edge.settings import Problem, Settings
from edge.sizing import (
    DEFAULT_MEMORY_MAX,
    PROXY_MEMORY_MAX,
    SYSTEM_RESERVE,
    CpuChoice,
    MemoryNeed,
    choose_cpus,
    memory_need,
    mib,
    most_threads,
)
from edge.survey import MIB, Survey
from edge.throttling import Throttling
from edge.tuning import plan_tuning

if TYPE_CHECKING:
    from edge.artifacts.engine_pins import EnginePin

MIN_CPU_SHARE = 50
"""Below half of its cores, fewer threads are faster: they wait for each other at every layer."""


@dataclass(frozen=True)
class Offer:
    """What the controller has for a host."""

    engines: Sequence[EnginePin]
    """In order of preference."""
    proxy_release_id: str
    keys: tuple[ApiKey, ...] | None
    """From the file that `api_keys_file` names; None: it names none."""
    now: float
    """The time by which keys expire, in Unix seconds."""


def host_python(survey: Survey) -> str:
    """The python3 that the proxy will run on: the host's own, else what its distribution installs.

    Empty where neither is known.
    """
    return survey.python or DISTRIBUTION_PYTHON.get((survey.os_id, survey.os_version), "")


def solve(
    host: str,
    groups: Sequence[str],
    settings: Settings,
    survey: Survey,
    model: ModelInfo,
    offer: Offer,
) -> tuple[HostPlan | None, list[Problem]]:
    """Solve one host.

    Returns:
        The plan, or None with every reason why it cannot work and which number to change.
    """
    hardware, class_reason = classify(groups, survey)
    solver = _Solver(host, settings, survey, model, hardware)
    pin = solver.engine(offer.engines)
    python = solver.python()
    solver.context()
    slots, cache = solver.slots_and_cache()
    need = solver.need(slots, cache)
    threads = solver.threads(need.total)
    memory_max = solver.memory(need)
    quota = solver.quota(threads)
    solver.access(offer)
    if solver.problems or pin is None:
        return None, solver.problems

    choice = solver.cpus(threads, need.total)
    tuning = plan_tuning(settings, survey)
    boot = plan_boot(
        tuning.kernel_parameters,
        survey.boot,
        cmdline=survey.cmdline,
        dt_model=survey.dt_model,
        kernel=survey.kernel,
    )
    reboot = plan_reboot(settings, boot, survey)
    solver.reasons |= {f"tuning.{key}": value for key, value in tuning.reasons.items()}
    solver.reasons |= {f"boot.{key}": value for key, value in boot.reasons.items()}
    solver.reasons["class"] = class_reason
    plan = HostPlan(
        host=host,
        hardware=hardware.name,
        arch=survey.arch,
        engine=EnginePlan(
            release_id=pin.release_id,
            build=pin.build,
            kind=pin.kind,
            threads=threads,
            cpus=choice.cpus,
            numa_node=choice.node,
            slots=slots,
            context_per_slot=settings.context_per_slot,
            context_total=slots * settings.context_per_slot,
            cache_ram_mib=cache,
            batch_size=settings.batch_size,
            ubatch_size=settings.ubatch_size,
            flash_attention=settings.flash_attention,
            port=settings.engine_port,
        ),
        limits=LimitsPlan(
            cpu_quota_percent=quota,
            cpu_weight=settings.cpu_weight,
            io_weight=settings.io_weight,
            memory_need=need,
            # Throttling below what is needed would slow every answer and free nothing.
            memory_high=max(memory_max * 9 // 10, need.total),
            memory_max=memory_max,
            proxy_memory_max=PROXY_MEMORY_MAX,
        ),
        model=ModelPlan(
            source=settings.model_source,
            sha256=model.sha256,
            size_bytes=model.size_bytes,
            file_name=model.file_name,
            name=settings.model_name or _word(model.file_name.removesuffix(".gguf")),
            description=f"{model.name or model.architecture} {model.file_type}",
        ),
        proxy=ProxyPlan(
            release_id=offer.proxy_release_id,
            python=python,
            listen=settings.proxy_listen,
            port=settings.proxy_port,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            system_prompt=settings.system_prompt,
            queue_limit=settings.queue_limit,
            keys=offer.keys,
            cors_origins=settings.cors_origins,
        ),
        tuning=tuning,
        boot=boot,
        reboot=reboot,
        journal_max_mib=settings.journal_max_mib,
        gate_timeout_s=settings.gate_timeout_s,
        reasons=solver.reasons,
        warnings=(
            *_warnings(hardware, class_reason, survey),
            *reboot.warnings,
            *tuning.warnings,
            *boot.warnings,
            *access.warnings(offer.keys, offer.now),
        ),
    )
    return plan, []


def _warnings(hardware: HardwareClass, class_reason: str, survey: Survey) -> list[str]:
    found = []
    if class_reason != f"inventory group {hardware.name}":
        found.append(f"class {hardware.name}: {class_reason}")
    if survey.throttled and (warning := Throttling.of(survey.throttled).warning):
        found.append(f"{warning}: vcgencmd get_throttled = {survey.throttled:#x}")
    return found


class _Solver:
    """Collects reasons and problems while the numbers are worked out one after the other."""

    def __init__(
        self,
        host: str,
        settings: Settings,
        survey: Survey,
        model: ModelInfo,
        hardware: HardwareClass,
    ) -> None:
        self.host, self.settings, self.survey = host, settings, survey
        self.model, self.hardware = model, hardware
        self.reasons: dict[str, str] = {}
        self.problems: list[Problem] = []

    def refuse(self, key: str, value: Any, what: str) -> None:
        self.problems.append(Problem(self.host, key, value, what))

    def engine(self, pins: Sequence[EnginePin]) -> EnginePin | None:
        survey, asked = self.survey, self.settings.engine_source
        sizes = PAGE_SIZES.get(survey.arch)
        if not pins or sizes is None:
            self.refuse("engine_source", asked, f"no engine for architecture {survey.arch}; "
                        f"edge-llm runs on {' and '.join(PAGE_SIZES)}")  # fmt: skip
            return None
        if survey.page_size not in sizes:
            self.refuse("engine_source", asked, f"no engine for a page size of {survey.page_size} "
                        f"bytes; boot a kernel with {' or '.join(map(str, sizes))}")  # fmt: skip
            return None
        if survey.glibc is None:
            self.refuse("engine_source", asked, "the host has no GNU libc (a musl distribution?); "
                        "use Debian, Ubuntu or Raspberry Pi OS")  # fmt: skip
            return None
        have = _dotted(survey.glibc)
        passed: list[str] = []
        for pin in pins:
            if pin.glibc_floor <= survey.glibc:
                why = f"glibc {have} is at least {_dotted(pin.glibc_floor)}"
                self.reasons["engine.release_id"] = "; ".join([*passed, why])
                return pin
            passed.append(f"{pin.release_id} needs glibc {_dotted(pin.glibc_floor)}, not {have}")
        self.refuse("engine_source", asked, "; ".join(passed) + "; use a newer distribution"
                    + ("" if asked != "release" else ", or engine_source = 'auto'"))  # fmt: skip
        return None

    def python(self) -> str:
        python = host_python(self.survey)
        if python not in PROXY_PYTHONS:
            what = python or f"none, and {self.survey.os_name} is not known to install one"
            self.refuse("python3", what, f"the proxy needs python3 {', '.join(PROXY_PYTHONS)}; "
                        "use a supported distribution (docs/operations.md)")  # fmt: skip
        return python

    def threads(self, need: int) -> int:
        asked = self.settings.threads
        cores = self.survey.physical_cores
        if cores == 0:
            self.refuse("threads", asked, "the host shows no CPUs in /sys/devices/system/cpu; is "
                        "/sys mounted there?")  # fmt: skip
            return 1
        kept = min(self.settings.system_cores, cores - 1)
        left = cores - kept
        if asked == "auto":
            most, node = most_threads(self.survey, kept, need)
            self.reasons["engine.threads"] = (
                f"{cores} physical cores less {kept} for the system"
                + (f"; {most} of them on NUMA node {node}" if most < left else "")
            )
            return most
        self.reasons["engine.threads"] = "as asked (threads)"
        if asked > cores:
            self.refuse("threads", asked, f"the host has {cores} physical cores; more threads than "
                        f"cores are slower; set threads = {left} or leave it \"auto\"")  # fmt: skip
        elif asked > left:
            self.refuse("threads", asked, f"with system_cores = {kept} only {left} of {cores} "
                        f"cores are left; set threads = {left} or system_cores = "
                        f"{cores - asked}")  # fmt: skip
        return min(asked, left)

    def context(self) -> None:
        asked, most = self.settings.context_per_slot, self.model.context_length
        self.reasons["engine.context_per_slot"] = f"context_per_slot; the model allows {most}"
        if asked > most:
            self.refuse("context_per_slot", asked, f"the model was trained for {most} tokens; "
                        f"set context_per_slot = {most} at most" +
                        (" and max_tokens below it" if most <= self.settings.max_tokens else "")
                        )  # fmt: skip

    def slots_and_cache(self) -> tuple[int, int]:
        asked, cache = self.settings.slots, self.settings.cache_ram_mib
        title = self.hardware.title
        self.reasons["engine.cache_ram_mib"] = (
            f"{title}; the engine's own default is 8192" if cache == "auto" else "as asked"
        )
        cache = self.hardware.cache_ram_mib if cache == "auto" else cache
        if asked != "auto":
            self.reasons["engine.slots"] = "as asked (slots)"
            return asked, cache
        memory = self.survey.memory_total
        slots = best = self.hardware.slots_for(memory)
        while slots > 1 and mib(self.need(slots, cache).total) > self.most_memory():
            slots -= 1
        less = f", less than its {best}: memory" if slots < best else ""
        self.reasons["engine.slots"] = f"{title} with {mib(memory)} MiB of memory{less}"
        return slots, cache

    def need(self, slots: int, cache: int) -> MemoryNeed:
        return memory_need(
            self.model,
            slots=slots,
            context_per_slot=self.settings.context_per_slot,
            cache_ram_mib=cache,
            ubatch_size=self.settings.ubatch_size,
        )

    def most_memory(self) -> int:
        """MiB that the engine may have on this host."""
        return (self.survey.memory_total - SYSTEM_RESERVE) // MIB

    def memory(self, need: MemoryNeed) -> int:
        asked, total = self.settings.memory_max_mib, self.survey.memory_total
        least, most = mib(need.total), self.most_memory()
        less = "or take a smaller model, fewer slots, less context_per_slot or cache_ram_mib"
        self.reasons["limits.memory_need"] = f"{need} = {least} MiB"
        if least > most:
            # What the cache of keys and values may have, in tokens of each slot.
            context = self.settings.context_per_slot
            room = most * MIB - need.total + need.kv
            fits = room * context // need.kv // 256 * 256 if need.kv else 0
            also = "" if asked == "auto" else ' and memory_max_mib = "auto"'
            hint = (
                f"set context_per_slot = {fits}{also}, " if fits > self.settings.max_tokens else ""
            )
            self.refuse("memory_max_mib", asked, f"the model needs {least} MiB ({need}) and the "
                        f"system {mib(SYSTEM_RESERVE)}, but the host has {mib(total)} MiB; {hint}"
                        f"add memory, {less}")  # fmt: skip
            return least * MIB
        if asked == "auto":
            limit = min(max(least, DEFAULT_MEMORY_MAX // MIB), most)
            self.reasons["limits.memory_max"] = (
                "1.2 GB, as the recipe" if limit * MIB == DEFAULT_MEMORY_MAX
                else "what the model needs" if limit == least
                else f"what the host's {mib(total)} MiB leave"
            )  # fmt: skip
            return limit * MIB
        self.reasons["limits.memory_max"] = "as asked (memory_max_mib)"
        if asked < least:
            self.refuse("memory_max_mib", asked, f"the model needs {least} MiB ({need}); set "
                        f"memory_max_mib = {least} at least, {less}")  # fmt: skip
        elif asked > most:
            self.refuse("memory_max_mib", asked, f"the host has {mib(total)} MiB, of which "
                        f"{mib(SYSTEM_RESERVE)} stay with the system; set memory_max_mib = {most} "
                        "at most")  # fmt: skip
        return asked * MIB

    def quota(self, threads: int) -> int:
        share = self.settings.cpu_share_percent
        quota = share * threads
        fewer = max(quota // 100, 1)
        self.reasons["limits.cpu_quota_percent"] = f"{share}% of {threads} chosen cores"
        if threads > 1 and share < MIN_CPU_SHARE:
            self.refuse("cpu_share_percent", share, f"gives {threads} threads {quota}% of one core "
                        f"together; they would wait for each other: set cpu_share_percent = "
                        f"{MIN_CPU_SHARE} or more, or threads = {fewer} with cpu_share_percent = "
                        f"{min(quota // fewer, 100)}")  # fmt: skip
        return quota

    def access(self, offer: Offer) -> None:
        listen, file = self.settings.proxy_listen, self.settings.api_keys_file
        self.reasons["proxy.access"] = access.who_may_ask(listen, offer.keys, offer.now)
        if why := access.why_refused(listen, offer.keys, file, offer.now):
            self.refuse("proxy_listen", listen, why)

    def cpus(self, threads: int, need: int) -> CpuChoice:
        kept = min(self.settings.system_cores, self.survey.physical_cores - threads)
        choice = choose_cpus(self.survey, threads, kept, need)
        self.reasons["engine.cpus"] = choice.reason
        return choice


def _word(text: str) -> str:
    """A file's name as a model's name: what `model_name` may hold."""
    return re.sub(r"[^A-Za-z0-9._:/@+-]+", "-", text)[:128]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
