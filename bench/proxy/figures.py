"""From what the clients met to the rows of bench/results/proxy.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.proxy.load import Delays

MEASURES = (
    "added_first_token_p50_ms",
    "added_first_token_p95_ms",
    "added_token_p50_ms",
    "added_token_p95_ms",
    "cpu_s_per_1000_tokens",
    "peak_rss_mib",
)
Row = dict[str, float | int | None]
"""The MEASURES, None where nothing was served, and `errors`."""


@dataclass(frozen=True)
class Run:
    """One repeat of one case with one system: a fresh process, warmed up by one short stream."""

    delays: Delays
    cpu_s: float
    peak_rss_mib: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours."""
    if not values:
        raise ValueError("no percentile of nothing")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def measures(run: Run) -> dict[str, float]:
    """The MEASURES of one run, without those that nothing served can tell."""
    found = {}
    for name, values in (
        ("added_first_token", run.delays.first_ms),
        ("added_token", run.delays.token_ms),
    ):
        if values:
            found[f"{name}_p50_ms"] = percentile(values, 0.50)
            found[f"{name}_p95_ms"] = percentile(values, 0.95)
    if run.delays.tokens:
        found["peak_rss_mib"] = run.peak_rss_mib
        found["cpu_s_per_1000_tokens"] = run.cpu_s / run.delays.tokens * 1000
    return found


def row(runs: Sequence[Run]) -> Row:
    """Medians over the repeats; errors are their sum, so that no median hides one."""
    each = [measures(run) for run in runs]
    result: Row = {}
    for name in MEASURES:
        values = [one[name] for one in each if name in one]
        result[name] = round(statistics.median(values), 4) if values else None
    result["errors"] = sum(sum(run.delays.errors.values()) for run in runs)
    return result


def nothing(streams: int) -> Row:
    """The row of a system that could not be had: every stream is an error."""
    return {**dict.fromkeys(MEASURES), "errors": streams}
