"""Operation: reboot a host, one of the fleet at a time, and wait until it serves again."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import gevent
from gevent.event import Event
from pyinfra.api import FunctionCommand, Host, State, operation
from pyinfra.api.exceptions import ConnectError
from pyinfra.connectors.util import clear_askpass_cache

from edge.operations.remote import Arguments, RemoteError, arguments_of, fail, report, run, succeed
from edge.plan import STATE
from edge.reboot import RebootPlan, in_vain, still_missing
from edge.render import AGENT
from edge.summary import Outcome, outcome_of, record
from edge.survey_script import SCRIPT, SurveyError, parse

POLL_S = 1.0
ATTEMPT_S = 20.0
"""Longest wait for one answer of a host that goes down or comes up."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HERE = f"cat {BOOT_ID}; systemctl is-system-running || :; cat /proc/cmdline"
BOOTING = ("initializing", "starting")
IN_VAIN = f"{STATE}/reboot-in-vain"
"""On the host: the boot id of a boot that did not bring what it was for."""


@operation()
def reboot(
    plan: RebootPlan, desired: Mapping[str, Any], *, refused: str = ""
) -> Generator[FunctionCommand, None, None]:
    """Reboot a host that serves, and wait for it to serve again with what was waiting in effect.

    Hosts take turns. One that does not come back, does not serve or was rebooted in vain keeps the
    ones after it from being rebooted; they fail with that as the reason, and go on serving.

    Args:
        plan: what waits for the boot; nothing is done where none is due.
        desired: what `edge.render.desired_state` says, for the gate.
        refused: why this host must not be rebooted; "" if it may.
    """
    if not plan.due:
        return
    from pyinfra import host  # the host in whose context the operation is prepared

    yield FunctionCommand(_in_turn, (plan, desired, refused, arguments_of(host)), {})


class _NotRebooted(Exception):  # noqa: N818  (says what happened)
    """The host was left as it is, and serves; why."""


class _Lost(Exception):  # noqa: N818  (says what happened)
    """What went wrong with a host that was told to reboot; no other is rebooted after it."""

    def __init__(self, reason: str, outcome: Outcome | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome or Outcome(ok=False)


@dataclass(frozen=True)
class _Here:
    boot_id: str
    state: str
    """systemd's word for how far the boot has come."""
    cmdline: str


class _Turns:
    """Lets in one at a time: of those who wait, the one that the inventory lists first.

    pyinfra runs the hosts side by side, in no order, as greenlets of one process.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._free = Event()
        self._free.set()

    @contextmanager
    def take(self, place: int) -> Iterator[None]:
        self._waiting.append(place)
        while True:
            gevent.sleep(0)  # the others who are here already come to wait, too
            self._free.wait()
            # Asked again: all who wait are woken, and the first of them has taken it.
            if self._free.is_set() and place == min(self._waiting):
                break
        self._free.clear()
        self._waiting.remove(place)
        try:
            yield
        finally:
            self._free.set()


_turns = _Turns()
_ended: dict[str, bool] = {}
_stopped_by: list[str] = []


def _in_turn(
    state: State,
    host: Host,
    plan: RebootPlan,
    desired: Mapping[str, Any],
    refused: str,
    arguments: dict[str, Any],
) -> bool:
    with _turns.take(list(state.inventory).index(host)):
        # With --retry a failed operation runs again; a host is rebooted once a run at most.
        if host.name not in _ended:
            _ended[host.name] = _reboot(host, plan, desired, refused, arguments)
        return _ended[host.name]


def _reboot(
    host: Host, plan: RebootPlan, desired: Mapping[str, Any], refused: str, arguments: Arguments
) -> bool:
    served = outcome_of(host.name) or Outcome(ok=True, serving=True)
    try:
        if _stopped_by:
            raise _NotRebooted(_stopped_by[0])
        if refused:
            raise _NotRebooted(refused)
        before = _look(host, plan, arguments)
        if before is None:
            words = f"rebooted by somebody meanwhile; in effect: {' '.join(plan.waiting)}"
            record(host.name, replace(served, reboot=words))
            return True
        record(host.name, Outcome(ok=False, reason="in reboot: this run did not wait for its end"))
        seconds, outcome = _Reboot(host, plan, desired, arguments, before).run()
    except _NotRebooted as error:
        reason = f"not rebooted, because {error}. It serves; {plan.says}"
        record(host.name, replace(served, ok=False, reason=reason))
        fail(host, reason)
        return False
    except _Lost as error:
        _stopped_by.append(f"{host.name} {error}")
        outcome = replace(error.outcome, ok=False, reason=f"rebooted, and {error}")
        record(host.name, outcome)
        fail(host, "\n".join([outcome.reason, *(f"  | {line}" for line in outcome.journal)]))
        return False
    words = f"rebooted, serves again after {seconds:.0f} s; in effect: {' '.join(plan.waiting)}"
    record(host.name, replace(outcome, restarted=served.restarted, reboot=words))
    report(host, f"{words}; {outcome.speed}")
    return True


def _look(host: Host, plan: RebootPlan, arguments: Arguments) -> str | None:
    """The host's boot id, None where it has been rebooted since it was surveyed.

    Raises:
        _NotRebooted: the next boot would not bring what is waiting, by the boot files of this
            moment; or they cannot be read.
    """
    try:
        survey = parse(succeed(host, SCRIPT, arguments))
    except (RemoteError, SurveyError) as error:
        raise _NotRebooted(f"its boot files could not be read: {error}") from None
    missing = still_missing(plan.waiting, survey.cmdline)
    if not missing:
        return None
    if why := in_vain(missing, survey):
        raise _NotRebooted(f"it would be in vain, {why}")
    return survey.boot_id


class _Reboot:
    """One host's reboot. `before` is the boot id that must be gone."""

    def __init__(
        self,
        host: Host,
        plan: RebootPlan,
        desired: Mapping[str, Any],
        arguments: Arguments,
        before: str,
    ) -> None:
        self.host, self.plan, self.desired, self.arguments = host, plan, desired, arguments
        self.before = before

    def run(self) -> tuple[float, Outcome]:
        """Seconds that it took, and what the gate found.

        Raises:
            _NotRebooted: the host refused to.
            _Lost: it did not come back, does not serve, or still lacks what was waiting.
        """
        began = time.monotonic()
        report(self.host, f"Rebooting, others wait: {' '.join(self.plan.waiting)}")
        self.tell()
        here = self.await_boot(began + self.plan.timeout_s)
        report(self.host, f"Back after {time.monotonic() - began:.0f} s; asking it for an answer")
        outcome = self.await_answer(here)
        if missing := still_missing(self.plan.waiting, here.cmdline):
            with suppress(RemoteError):
                run(self.host, f"cat {BOOT_ID} > {IN_VAIN}", self.arguments)
            raise _Lost(
                f"came back without what it was rebooted for: {' '.join(missing)} stands in its "
                "boot files and not in /proc/cmdline, so it boots by others; it serves",
                outcome,
            )
        return time.monotonic() - began, outcome

    def tell(self) -> None:
        """Have systemd reboot: it lets the proxy end its answers before it stops the engine."""
        message = shlex.quote(f"edge-llm: reboot for {' '.join(self.plan.waiting)}")
        # Without that file every rollout would reboot a host that boots by other files.
        script = (
            f'if [ "$(cat {IN_VAIN} 2>/dev/null)" = "$(cat {BOOT_ID})" ]; then echo in-vain; '
            f"elif ! systemctl reboot --message={message}; then echo refused; fi"
        )
        # The connection may die under the command; then the next boot id says what came of it.
        patience = min(ATTEMPT_S, self.plan.timeout_s)
        with suppress(RemoteError, gevent.Timeout), gevent.Timeout(patience):
            output = run(self.host, script, self.arguments)
            said = output.stdout.split()
            if "refused" in said:
                raise _NotRebooted(f"systemctl reboot failed: {output.stderr or 'without a word'}")
            if "in-vain" in said:
                raise _NotRebooted("the last reboot for it was in vain: mend that, and reboot it")

    def await_boot(self, end: float) -> _Here:
        """The host after its boot."""
        last = "no answer"
        while (left := end - time.monotonic()) > 0:
            try:
                with gevent.Timeout(min(left, ATTEMPT_S), TimeoutError("no answer")):
                    self.connect()
                    here = self.here()
                if here.boot_id != self.before:
                    return here
                last = "it answers, and has not gone down"
            except (ConnectError, RemoteError, TimeoutError) as error:
                last = str(error)
            gevent.sleep(POLL_S)
        raise _Lost(f"did not come back within {self.plan.timeout_s} s ({last})")

    def await_answer(self, here: _Here) -> Outcome:
        """What the gate finds, as soon as it is green or nothing more is being started."""
        end = time.monotonic() + self.desired["gate_timeout_s"]
        while True:
            booting = here.state in BOOTING  # asked before the gate: else it is missed in between
            try:
                outcome = self.probe()
                if outcome.ok:
                    return outcome
                problem = outcome.reason
            except RemoteError as error:
                outcome, problem, booting = Outcome(ok=False), str(error), True
            # Units that are still to be started are no failure of the boot.
            if not booting or time.monotonic() > end:
                raise _Lost(f"came back, but does not serve: {problem}", outcome)
            gevent.sleep(POLL_S)
            with suppress(ConnectError, RemoteError):
                self.connect()
                here = self.here()

    def connect(self) -> None:
        """A new connection, with the host key checked as for the first one."""
        clear_askpass_cache(self.host)  # /tmp is another one now
        if client := getattr(self.host.connector, "client", None):
            client.close()
        self.host.connector.connect()

    def here(self) -> _Here:
        lines = succeed(self.host, HERE, self.arguments).strip().splitlines()
        if len(lines) != 3:
            raise RemoteError(f"an answer of {len(lines)} lines instead of three")
        return _Here(*(line.strip() for line in lines))

    def probe(self) -> Outcome:
        output = run(self.host, f"{AGENT} probe", self.arguments, stdin=json.dumps(self.desired))
        try:
            return Outcome.from_agent(json.loads(output.stdout.strip().splitlines()[-1]))
        except (ValueError, IndexError):
            said = output.stderr or output.stdout or "nothing"
            return Outcome(ok=False, reason=f"the agent gave no result; it said: {said}")
