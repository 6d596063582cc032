"""The command line of edge-host: a request on stdin, a result on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict

from .activate import activate
from .converge import STOP_S
from .files import write_json
from .gate import Gate
from .lock import locked
from .paths import Paths
from .result import Failed, Result, now, say
from .systemd import journal
from .units import UNITS
from .wanted import Wanted


def run(paths: Paths, verb: str, text: bytes) -> Result:
    """One call: reads the request, does what the verb says; never raises."""
    result = Result(verb)
    try:
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise Failed(f"the request cannot be used: it is no JSON ({error})") from error
        wanted = Wanted.parse(raw)
        result.plan_digest = wanted.plan_digest
        with locked(paths, verb, 2 * (wanted.gate_timeout_s + STOP_S)):
            if verb == "activate":
                activate(paths, wanted, result)
                result.time = now()
                write_json(paths.state / "last-activation.json", asdict(result))
            else:
                result.gate = Gate(paths, wanted).run()
                result.ok = result.serving = True
    except Failed as error:
        result.reason = str(error)
        result.journal = journal(paths, error.units)
    except Exception as error:
        result.reason = f"{result.reason}; edge-host itself failed: {error!r}".lstrip("; ")
        result.ok = False
    result.restarted = sorted(set(result.restarted), key=UNITS.index)
    result.time = now()
    return result


def main() -> int:
    """The command line."""
    if sys.argv[1:] not in (["activate"], ["probe"]):
        say("usage: edge-host activate|probe, with a request as JSON on stdin")
        return 1
    result = run(Paths(), sys.argv[1], sys.stdin.buffer.read())
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(asdict(result)).encode() + b"\n")
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
