"""What a proxy adds to the engine's stream: `make bench-proxy`, explained in docs/benchmarks.md.

Prints medians over the repeats and ratios of this run; a whole run (all systems, all cases, not
--quick) is also written to bench/results/proxy.json and into the table of docs/benchmarks.md, any
other only where --out says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.proxy import report
from bench.proxy.figures import Row, Run, nothing, row
from bench.proxy.processes import CHECKOUT, Placement
from bench.proxy.run import CASES, measure
from bench.proxy.systems import SYSTEMS, Unavailable

_RESULTS = CHECKOUT / "bench" / "results" / "proxy.json"
_PAGE = CHECKOUT / "docs" / "benchmarks.md"
_TOKENS, _QUICK_TOKENS = 100, 20
_WIDTH = 108  # of the table


def main() -> int:
    """Run the benchmark; 1 when our own proxy lost or changed a stream."""
    args = _arguments()
    repeats = 1 if args.quick else args.repeats
    tokens = _QUICK_TOKENS if args.quick else _TOKENS
    versions: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for name in args.systems:
        try:
            versions[name] = SYSTEMS[name].prepare()
        except Unavailable as err:
            reasons[name] = str(err)
    runs: dict[str, dict[str, list[Run]]] = {
        name: {case: [] for case in args.streams} for name in args.systems
    }
    for repeat in range(repeats):
        for case in args.streams:
            for name in versions:  # interleaved: what disturbs the machine disturbs all
                run = measure(SYSTEMS[name], CASES[case], tokens, args.first_token_ms)
                runs[name][case].append(run)
                print(f"{repeat + 1}/{repeats} {case:8} {name:8} {_line(run)}", file=sys.stderr)
    results = {
        name: {case: _row(found, case) for case, found in runs[name].items()} for name in runs
    }
    report.show(results, reasons, Console(width=max(_WIDTH, Console().width)))
    whole = not args.quick and set(args.systems) == set(SYSTEMS) and set(args.streams) == set(CASES)
    target = args.out or (_RESULTS if whole else None)
    if target is not None:
        report.write(target, results, _about(args, runs, repeats, tokens, versions, reasons))
        print(f"written to {target}", file=sys.stderr)
        if target == _RESULTS:
            report.into(_PAGE, results)
    ours = [results[name] for name in results if name.startswith("edge")]
    return 1 if any(one["errors"] for rows in ours for one in rows.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.proxy", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--streams", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat of short streams")
    parser.add_argument(
        "--first-token-ms",
        type=float,
        default=0.0,
        help="from a request's arrival at the engine to its first token (default: at once)",
    )
    parser.add_argument("--out", type=Path, help="where the results are written")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be 1 or more")
    return args


def _row(runs: list[Run], case: str) -> Row:
    return row(runs) if runs else nothing(CASES[case].streams)


def _line(run: Run) -> str:
    lost = sum(run.delays.errors.values())
    said = f", {lost} errors: {run.delays.errors}" if lost else ""
    return f"{run.delays.tokens} tokens in {run.delays.last_s:.1f} s, {run.cpu_s:.2f} s CPU{said}"


def _about(
    args: argparse.Namespace,
    runs: dict[str, dict[str, list[Run]]],
    repeats: int,
    tokens: int,
    versions: dict[str, str],
    reasons: dict[str, str],
) -> dict[str, Any]:
    placement = Placement.of_this_machine()
    errors = {
        f"{name} at {case}": found
        for name, cases in runs.items()
        for case, some in cases.items()
        if (found := [run.delays.errors for run in some if run.delays.errors])
    }
    lasted = {
        name: {
            case: round(statistics.median(run.delays.last_s for run in some), 2)
            for case, some in cases.items()
            if some
        }
        for name, cases in runs.items()
    }
    return {
        **report.machine(),
        "repeats": repeats,
        "tokens_a_stream": tokens,
        "first_token_ms": args.first_token_ms,
        "cpus_of_engine_and_clients": sorted(placement.tools),
        "cpus_of_the_system": sorted(placement.system),
        "ahead_of_other_processes": os.geteuid() == 0,
        "versions": versions,
        "could_not_be_had": reasons,
        "errors_by_kind": errors,
        "seconds_to_the_last_byte": lasted,
    }


if __name__ == "__main__":
    sys.exit(main())
