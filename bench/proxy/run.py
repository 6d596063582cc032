"""One run: an engine, a system in front of it and clients, all fresh, all ended."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.proxy import load, processes
from bench.proxy.figures import Run
from bench.proxy.processes import CHECKOUT, Placement
from bench.proxy.systems import Ports, System, environment

_BETWEEN_TRIES_S = 0.1
_LIMIT_S = 60.0


@dataclass(frozen=True)
class Case:
    """How many streams, and over how many seconds they arrive (0: at the same instant)."""

    streams: int
    spread_s: float


CASES = {
    "1": Case(1, 0.0),
    "50": Case(50, 2.0),
    "200": Case(200, 2.0),
    "50-burst": Case(50, 0.0),
}


def measure(system: System, case: Case, tokens: int, first_token_ms: float) -> Run:
    """Measure one system once. Whatever goes wrong is in the run's errors."""
    placement = Placement.of_this_machine()
    with tempfile.TemporaryDirectory() as name, _engine(placement, first_token_ms) as port:
        folder = Path(name)
        log = folder / "log"
        try:
            if system.command is None:
                _warm_up(system, port, log)
                return Run(_ask(system, case, port, tokens, placement), 0.0, 0.0)
            ports = Ports(processes.free_port(), port)
            command = system.command(ports, folder)
            env = environment(system, ports, folder)
            with processes.started(command, env, placement.system, system.folder, log) as pid:
                _warm_up(system, ports.own, log)
                before = processes.cpu_s(processes.tree(pid))
                delays = _ask(system, case, ports.own, tokens, placement)
                family = processes.tree(pid)
                spent = processes.cpu_s(family) - before
                return Run(delays, spent, processes.peak_rss_mib(family))
        except (_DidNotStart, OSError) as err:
            return Run(load.Delays(errors={str(err): case.streams}), 0.0, 0.0)


class _DidNotStart(Exception):  # noqa: N818  (says what happened)
    """A system does not serve; the text holds the end of what it printed."""


@contextlib.contextmanager
def _engine(placement: Placement, first_token_ms: float) -> Iterator[int]:
    """A scripted engine; its port. It ends when its standard input does."""
    command = [sys.executable, "-m", "bench.proxy.engine", "--first-token-ms", str(first_token_ms)]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: processes.settle(placement.tools),
    ) as engine:
        assert engine.stdout is not None
        yield int(engine.stdout.readline())


def _warm_up(system: System, port: int, log: Path) -> None:
    """Wait until one short stream comes through exactly: what is measured later is not a start."""
    deadline = time.monotonic() + system.start_s
    while True:
        tried = load.run(port, system.path, streams=1, spread_s=0, tokens=2, limit_s=system.start_s)
        if not tried.errors:
            return
        if time.monotonic() > deadline:
            printed = log.read_text(errors="replace")[-300:] if log.exists() else ""
            raise _DidNotStart(f"no stream within {system.start_s:g} s: {tried.errors}, {printed}")
        time.sleep(_BETWEEN_TRIES_S)


def _ask(system: System, case: Case, port: int, tokens: int, placement: Placement) -> load.Delays:
    """The clients, in a process of their own."""
    command = [
        *(sys.executable, "-m", "bench.proxy.load", str(port), system.path),
        *("--streams", str(case.streams), "--spread-s", str(case.spread_s)),
        *("--tokens", str(tokens), "--limit-s", str(_LIMIT_S)),
    ]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3 * _LIMIT_S,
        preexec_fn=lambda: processes.settle(placement.tools),
    )
    return load.Delays(**json.loads(done.stdout))
