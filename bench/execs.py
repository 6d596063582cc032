"""How many SSH commands a rollout costs a host: the first run, and one that finds all done.

    bench/execs.py                 in a lab of its own, made for it and taken away after it
    bench/execs.py INVENTORY …     two runs against hosts that are there (and pyinfra's options)

Counted is what the controller really opens: every session channel of every SSH connection, be it a
command or a file transfer. Nothing of edge-llm is changed for it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
COUNT = "--count-into"  # this script's own: the rest of its arguments are pyinfra's
AIM = 10
ORDINARY = (75, 49)
"""First and converged run of an ordinary deploy with pyinfra's own operations (19 of them)."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, or, with COUNT, pyinfra with its channels counted."""
    if arguments[:1] == [COUNT]:
        return _count(Path(arguments[1]), arguments[2:])
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if arguments:
        return _measure(arguments, os.environ)
    with _own_lab() as environment:
        return _measure(["inventory/lab.py"], environment)


def _measure(inventory: Sequence[str], environment: Mapping[str, str]) -> int:
    first, again = (_run(inventory, environment) for _ in range(2))
    if first is None or again is None:
        return 1
    width = max(map(len, ["an ordinary deploy", *first]))
    print(f"\n{'SSH commands':{width}}  this run  run again")
    for host in sorted(first):
        print(f"{host:{width}}  {first[host]:8}  {again.get(host, 0):9}")
    print(f"{'an ordinary deploy':{width}}  {ORDINARY[0]:8}  {ORDINARY[1]:9}")
    print(f"{'aim':{width}}  {'':8}  {f'<= {AIM}':>9}")
    return 0 if max(again.values()) <= AIM else 1


def _run(inventory: Sequence[str], environment: Mapping[str, str]) -> dict[str, int] | None:
    """One run of deploy.py; channels by host, or None where it failed (it has said why)."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.json")
        command = [sys.executable, __file__, COUNT, str(counts), "-y", *inventory, "deploy.py"]
        done = subprocess.run(command, cwd=CHECKOUT, env=dict(environment), check=False)
        if done.returncode != 0 or not counts.exists():
            return None
        return dict(json.loads(counts.read_text()))


def _count(into: Path, arguments: Sequence[str]) -> int:
    """pyinfra, with every session channel of every host counted."""
    sys.path.insert(0, str(CHECKOUT))
    from pyinfra_cli.main import main as pyinfra  # patches the standard library: first

    from paramiko import Transport  # isort: skip
    from pyinfra.connectors.ssh import SSHConnector  # isort: skip

    names: dict[Any, str] = {}
    channels: Counter[str] = Counter()
    connect, open_channel = SSHConnector.connect, Transport.open_channel

    def connected(connector: SSHConnector) -> None:
        connect(connector)
        assert connector.client is not None
        names[connector.client.get_transport()] = connector.host.name
        channels[connector.host.name] += 0

    def opened(transport: Transport, kind: str, *args: Any, **kwargs: Any) -> Any:
        if kind == "session":
            channels[names.get(transport, "(before the login)")] += 1
        return open_channel(transport, kind, *args, **kwargs)

    for owner, name, counted in (
        (SSHConnector, "connect", connected),
        (Transport, "open_channel", opened),
    ):
        setattr(owner, name, counted)
    atexit.register(lambda: into.write_text(json.dumps(channels)))
    sys.argv = ["pyinfra", *arguments]
    pyinfra()
    return 0


@contextmanager
def _own_lab() -> Iterator[dict[str, str]]:
    """Three bare hosts under another name than the checkout's lab; gives their environment."""
    environment = {**os.environ, "EDGE_LAB_NAME": "execs"}
    lab = [sys.executable, "-m", "lab"]
    try:
        subprocess.run([*lab, "up"], cwd=CHECKOUT, env=environment, check=True)
        yield environment
    finally:
        subprocess.run([*lab, "down"], cwd=CHECKOUT, env=environment, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
