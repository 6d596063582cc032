"""The switch to a wanted state, and the way back."""

from __future__ import annotations

import contextlib

from .converge import converge
from .gate import Gate
from .good import keep_good, load_good, restore
from .paths import Paths
from .releases import check, prune
from .result import Failed, Result, say
from .systemd import journal, show, systemctl
from .units import ENGINE, PROXY, SOCKET, UNITS
from .wanted import Wanted

DOWN = ("inactive", "failed")


def activate(paths: Paths, wanted: Wanted, result: Result) -> None:
    """Make the wanted state live and prove it, or go back; fills in the result."""
    (paths.state / "last-activation.json").unlink(missing_ok=True)  # no answer until we have one
    touched = False
    try:
        check(paths, wanted)
        touched = True
        converge(paths, wanted, result.restarted)
        result.gate = Gate(paths, wanted, result.restarted).run()
    except Exception as error:  # whatever it was: a host that served must serve again
        result.reason = str(error) if isinstance(error, Failed) else repr(error)
        say(f"failed: {result.reason}")
        result.journal = journal(paths, error.units if isinstance(error, Failed) else UNITS)
        go_back(paths, wanted, result, touched=touched)
        return
    result.serving = True
    try:
        keep_good(paths, wanted, result.gate)
        result.ok = True
        prune(paths, wanted)
    except OSError as error:
        what = "old releases could not be removed" if result.ok else "it could not be recorded"
        result.reason = f"it serves, but {what}: {error}"
        say(result.reason)


def go_back(paths: Paths, wanted: Wanted, result: Result, *, touched: bool) -> None:
    """Return to the last good state; without one, stop what does not serve."""
    good = load_good(paths)
    if good is None:
        if not touched:
            result.reason += "; nothing was started or stopped"
            return
        # The socket first: a client would start the service again.
        for unit in (SOCKET, PROXY, ENGINE):
            with contextlib.suppress(Failed):
                systemctl(paths, "disable", "--quiet", "--now", unit)
        up = [u for u, p in show(paths, *UNITS).items() if p["ActiveState"] not in DOWN]
        result.reason += (
            "; there is no earlier good state to go back to: the services are disabled, and "
            + (f"could not be stopped: {' '.join(up)}" if up else "stopped until the next rollout")
        )
        say(result.reason)
        return
    state, files = good
    say(f"going back to the last good state ({state.plan_digest})")
    try:
        restore(paths, files, wanted, times=not touched)
        check(paths, state)
        converge(paths, state, result.restarted, force=touched)
        result.gate = Gate(paths, state, result.restarted).run()
        result.serving = True
        result.rolled_back = state.digests != wanted.digests
        if not result.rolled_back:
            result.reason += "; after a restart the same configuration serves again"
        say("the last good state serves again")
    except Exception as error:
        result.reason += f"; the last good state does not serve either: {error}"
        result.gate = {}
        say(result.reason)
