"""A plan as rows that a person reads: what, value, why."""

from __future__ import annotations

from edge.boot import BootPlan
from edge.plan import HostPlan
from edge.sizing import mib


def rows(plan: HostPlan) -> list[tuple[str, str, str]]:
    """Label, value with its unit, and reason (empty where the value is a setting as it stands)."""
    engine, limits, tuning, proxy = plan.engine, plan.limits, plan.tuning, plan.proxy
    why = plan.reasons
    parameters = " ".join(tuning.kernel_parameters)
    return [
        ("model", plan.model.name, f"{plan.model.description}, {mib(plan.model.size_bytes)} MiB"),
        ("engine", engine.release_id, why["engine.release_id"]),
        ("threads", str(engine.threads), why["engine.threads"]),
        ("cpus", _list(engine.cpus), why["engine.cpus"]),
        ("cpu quota", f"{limits.cpu_quota_percent} %", why["limits.cpu_quota_percent"]),
        ("cpu weight", str(limits.cpu_weight), ""),
        ("io weight", str(limits.io_weight), ""),
        ("slots", str(engine.slots), why["engine.slots"]),
        ("context a slot", f"{engine.context_per_slot} tokens", why["engine.context_per_slot"]),
        ("context in all", f"{engine.context_total} tokens", f"{engine.slots} slots"),
        ("prompt cache", f"{engine.cache_ram_mib} MiB", why["engine.cache_ram_mib"]),
        ("batch, micro-batch", f"{engine.batch_size}, {engine.ubatch_size} tokens", ""),
        ("flash attention", engine.flash_attention, ""),
        ("memory needed", f"{mib(limits.memory_need.total)} MiB", why["limits.memory_need"]),
        ("memory limit", f"{mib(limits.memory_max)} MiB", why["limits.memory_max"]),
        (
            "memory throttle",
            f"{mib(limits.memory_high)} MiB",
            "90% of the limit, and not below what is needed",
        ),
        ("engine address", f"127.0.0.1:{engine.port}", ""),
        ("proxy address", f"{proxy.listen}:{proxy.port}", ""),
        ("who may ask", why["proxy.access"], _origins(proxy.cors_origins)),
        ("proxy", proxy.release_id, f"python {proxy.python}"),
        *((knob.title, knob.value or "-", knob.reason) for knob in tuning.knobs),
        ("idle states off", _list(tuning.disabled_idle_states), why["tuning.idle_states"]),
        (
            "zram swap",
            f"{tuning.zram_percent} %" if tuning.zram_percent else "-",
            why["tuning.zram"],
        ),
        (
            "hardware watchdog",
            f"{tuning.watchdog_s} s" if tuning.watchdog_s else "-",
            why["tuning.watchdog"],
        ),
        ("no access times", ", ".join(tuning.noatime) or "-", why["tuning.noatime"]),
        ("kernel command line", parameters or "-", why["tuning.kernel_parameters"]),
        *_boot(plan.boot),
        ("from the next boot", " ".join(plan.reboot.waiting) or "-", plan.reboot.why),
    ]


def _boot(boot: BootPlan) -> list[tuple[str, str, str]]:
    """What boots the host, what line becomes what, and what waits for the next boot."""
    found = [("boot loader", boot.loader, boot.reasons["loader"])]
    for edit in boot.edits:
        first, *more = edit.lines or ["line ends only"]
        found.append(("boot file", edit.path, first))
        found += [("", "", line) for line in more]
    if boot.generate:
        found.append(("made anew", boot.generate.path, f"by {boot.generate.tool}"))
    if boot.leaving:
        found.append(("until a reboot", " ".join(boot.leaving), "it is no longer asked for"))
    return found


def _origins(origins: tuple[str, ...]) -> str:
    return f"also from pages of {', '.join(origins)}" if origins else ""


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers)) or "-"
