"""The table that is printed, and the files that are written."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.proxy.figures import Row

Results = Mapping[str, Mapping[str, Row]]
"""System -> case -> row: the shape of bench/results/proxy.json."""

_BEGIN, _END = "<!-- bench-proxy -->", "<!-- /bench-proxy -->"
_COLUMNS = (
    ("1st token\nP50 ms", "added_first_token_p50_ms", 1),
    ("1st token\nP95 ms", "added_first_token_p95_ms", 1),
    ("a token\nP50 ms", "added_token_p50_ms", 2),
    ("a token\nP95 ms", "added_token_p95_ms", 2),
    ("CPU s\n/1000 tokens", "cpu_s_per_1000_tokens", 3),
    ("peak\nMiB", "peak_rss_mib", 0),
)


def show(results: Results, reasons: Mapping[str, str], console: Console) -> None:
    """Print a table for each case; under each figure, its ratio to edge's and to direct's."""
    console.print("What each adds, in ms; below each figure: × edge · × direct")
    for case in next(iter(results.values())):
        table = Table(
            show_lines=True,
        )
        table.add_column("streams:\n" + case, no_wrap=True)
        for title, _, _ in _COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("\nerrors", justify="right")
        for system, rows in results.items():
            cells = [
                _cell(results, system, case, measure, digits) for _, measure, digits in _COLUMNS
            ]
            table.add_row(system, *cells, str(rows[case]["errors"]))
        console.print(table)
    for system, reason in reasons.items():
        console.print(f"{system} could not be had: {reason}", markup=False)


def _cell(results: Results, system: str, case: str, measure: str, digits: int) -> str:
    value = results[system][case][measure]
    if value is None:
        return "-"
    if system == "direct" and not value:
        return "none"  # there is no process between
    shares = []
    for other in ("edge", "direct"):
        base = results.get(other, {}).get(case, {}).get(measure)
        if base and other != system:
            share = value / base
            shares.append(f"{share:.0f}" if share >= 10 else f"{share:.1f}")
        else:
            shares.append("-")
    return f"{value:.{digits}f}\n{' · '.join(shares)}"


def write(target: Path, results: Results, about: Mapping[str, Any]) -> None:
    """Write the results, and beside them what they were measured with (NAME.about.json)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for path, value in ((target, results), (target.with_suffix(".about.json"), about)):
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def markdown(results: Results) -> str:
    """The results as one table, for docs/benchmarks.md."""
    titles = [title.replace("\n", " ").strip() for title, _, _ in _COLUMNS]
    lines = [
        "| streams | system | " + " | ".join([*titles, "errors"]) + " |",
        "|---|---|" + (len(titles) + 1) * "---:|",
    ]
    for case in next(iter(results.values())):
        for system, rows in results.items():
            row = rows[case]
            cells = [
                "-" if (value := row[measure]) is None else f"{value:.{digits}f}"
                for _, measure, digits in _COLUMNS
            ]
            if system == "direct":
                cells[-2:] = ["-", "-"]  # there is no process between
            lines.append(" | ".join([f"| {case}", system, *cells, f"{row['errors']} |"]))
    return "\n".join(lines) + "\n"


def into(page: Path, results: Results) -> None:
    """Replace the table between the two marks on a page."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no {_BEGIN} … {_END}")
    page.write_text(before + begin + "\n" + markdown(results) + end + after)


def machine() -> dict[str, Any]:
    """What the figures depend on, beside the versions."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0] if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
