"""A real engine and a crowd: how soon the first token comes, and that nothing is lost or grows.

    python -m bench.crowd                      both parts, in a lab made for it and taken away after
    python -m bench.crowd --rounds 5           a shorter crowd
    python -m bench.crowd --output FILE        where the figures go

Part one: 5 clients with 20 questions each, one after the other. Part two: 50 clients at once, each
in a conversation of 50 rounds of its own, in which the last round goes along with the question.
Settings are as planned: the host's slots, its queue of 32, one API key for all, so that the queue's
turns between clients do not help. A client that is told to come back later does so.

Ends with 1 if a request got no answer or a 503, a stream was dropped, a service was restarted, or
one came to its memory limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.crowd_clients import Crowd, Tally, Target, ask_all
from bench.crowd_memory import Service, watched
from lab import fleet
from lab.paths import Lab

CHECKOUT = Path(__file__).resolve().parent.parent
RESULTS = CHECKOUT / "bench/results/crowd.json"
PORT = 8000
LAB = "crowd"

STEADY = Crowd(clients=5, rounds=20, max_tokens=32, memory_rounds=0)
CROWD = Crowd(clients=50, rounds=50, max_tokens=8, memory_rounds=1)
"""Short: the lab's model reads and writes some 150 tokens a second on its three quarters of a core,
and 2500 answers are to take minutes, not hours."""
_PROGRESS_S = 30.0


def main() -> int:
    """Run both parts; print a table, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd")
    parser.add_argument(
        "--rounds", type=int, default=CROWD.rounds, help="rounds of each of the 50 clients"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    with _host() as (target, ssh):
        parts = {
            "steady": _part(target, ssh, STEADY),
            "crowd": _part(target, ssh, replace(CROWD, rounds=asked.rounds)),
        }
        plan = _plan(ssh)
    found = {
        "machine": {"cores": os.cpu_count()},
        "host": plan,
        **{name: part[0] for name, part in parts.items()},
    }
    _print(found)
    asked.output.parent.mkdir(exist_ok=True)
    asked.output.write_text(json.dumps(found, indent=1) + "\n")
    troubles = [f"{name}: {trouble}" for name, part in parts.items() for trouble in part[1]]
    print("\n".join(troubles) or f"No error. Figures are in {asked.output}.")
    return 1 if troubles else 0


def _part(target: Target, ssh: list[str], crowd: Crowd) -> tuple[dict[str, Any], list[str]]:
    """The figures of a part, and what is wrong with it."""
    print(f"{crowd}, {crowd.questions} questions in all …", flush=True)
    tally, load = Tally(), os.getloadavg()[0]
    with watched(ssh) as services:
        asyncio.run(_told(target, crowd, tally))
    figures = {
        **asdict(crowd),
        **tally.figures(),
        "memory": {unit: service.figures() for unit, service in services.items()},
        "load_of_this_machine": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    return figures, troubles(tally, services, crowd.questions)


async def _told(target: Target, crowd: Crowd, tally: Tally) -> None:
    """Ask, and say now and then how far it is."""
    asking = asyncio.ensure_future(ask_all(target, crowd, tally))
    while not (await asyncio.wait({asking}, timeout=_PROGRESS_S))[0]:
        print(f"  {tally.answers} answers, {len(tally.errors)} errors", flush=True)
    await asking


def troubles(tally: Tally, services: dict[str, Service], asked: int) -> list[str]:
    """What must not happen, one line each; none is good."""
    found = tally.errors[:20]
    if tally.dropped:
        found.append(f"{tally.dropped} streams ended without their last event")
    if tally.late:
        found.append(f"{tally.late} times a 503: this machine was too slow for the queue it had")
    if tally.answers != asked:
        found.append(f"{tally.answers} answers to {asked} questions")
    for unit, service in services.items():
        if service.restarts:
            found.append(f"{unit} was restarted {service.restarts} times")
        if not service.samples:
            found.append(f"{unit} was not seen running")
        elif (peak := max(sample[2] for sample in service.samples)) >= service.limit:
            found.append(f"{unit} came to its limit of {service.limit} bytes: {peak}")
    return found


@contextmanager
def _host() -> Iterator[tuple[Target, list[str]]]:
    """A provisioned host of a lab of its own: its chat, and the way in by SSH."""
    os.environ["EDGE_LAB_NAME"] = LAB
    command = [sys.executable, "-m"]
    try:
        subprocess.run([*command, "lab", "up", "--hosts", "1"], cwd=CHECKOUT, check=True)
        deploy = [*command, "pyinfra", "-y", "inventory/lab.py", "deploy.py"]
        subprocess.run(deploy, cwd=CHECKOUT, check=True, stdin=subprocess.DEVNULL)
        lab = Lab.from_environment()
        (host,) = fleet.require(lab).hosts
        key = lab.api_key.read_text().strip()
        yield Target(f"http://{host.address}:{PORT}", key), fleet.ssh_command(lab, host)
    finally:
        subprocess.run([*command, "lab", "down"], cwd=CHECKOUT, check=False)


_ASK_PLAN = (
    "grep -E '^EDGE_PROXY_(SLOTS|QUEUE_LIMIT|CONTEXT_PER_SLOT)=' /etc/edge-llm/proxy.env; "
    "systemctl show -p CPUQuotaPerSecUSec llama-server"
)


def _plan(ssh: list[str]) -> dict[str, str]:
    """What the host runs with, as it says."""
    done = subprocess.run([*ssh, f"sudo sh -c {json.dumps(_ASK_PLAN)}"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    pairs = (line.split("=", 1) for line in done.stdout.split())
    return {name.removeprefix("EDGE_PROXY_").lower(): value for name, value in pairs}


_ROWS = ("answers", "errors", "dropped_streams", "told_to_come_back_429", "told_to_come_back_503",
         "seconds", "tokens_per_s", "prompt_tokens_per_answer", "load_of_this_machine")  # fmt: skip


def _print(found: dict[str, Any]) -> None:
    parts = {"5 clients": found["steady"], "50 at once": found["crowd"]}
    rows = [[name, *(str(part[name]) for part in parts.values())] for name in _ROWS]
    for what in ("first_token_s", "queue_s"):
        for name in ("avg", "p50", "p95"):
            values = (f"{part[what][name]:.3f}" for part in parts.values())
            rows.append([f"{what} {name}", *values])
    for unit in ("llama-server", "chat-proxy"):
        for name in ("limit_mib", "first_mib", "peak_mib", "last_mib", "slope_mib_per_minute",
                     "restarts"):  # fmt: skip
            values = (str(part["memory"][unit][name]) for part in parts.values())
            rows.append([f"{unit} {name}", *values])
    print(f"\n{'':36}" + "".join(f"{name:>14}" for name in parts))
    for first, *cells in rows:
        print(f"{first:36}" + "".join(f"{cell:>14}" for cell in cells))
    print()


if __name__ == "__main__":
    sys.exit(main())
