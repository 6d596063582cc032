"""`edge plan`: every number that a host would run with, and its reason. Changes nothing."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import click

from edge import obstacles
from edge.artifacts import Cache, LineProgress
from edge.fleet import FleetError, read_fleet, survey_fleet
from edge.plan import HostPlan
from edge.plan_text import rows
from edge.planning import SettingsInvalid, check_fleet, plan_host
from edge.settings import Problem


@dataclass(frozen=True)
class Blocked:
    """A host on which something stands in the way; `plan` is None where none was made."""

    obstacles: tuple[str, ...]
    plan: HostPlan | None


Outcome = HostPlan | Blocked | list[Problem] | str


@click.command()
@click.argument("inventory")
@click.option("--limit", multiple=True, metavar="PATTERN", help="Only these hosts or groups.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(inventory: str, limit: tuple[str, ...], as_json: bool) -> None:
    """Show what each host of INVENTORY would run with, and why.

    Reads the hosts and changes nothing. Exits 1 if a host cannot be reached, cannot work with its
    settings, or if something stands in the way of provisioning it.
    """
    try:
        outcomes = _outcomes(inventory, limit)
    except (FleetError, SettingsInvalid) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({name: _data(outcome) for name, outcome in outcomes.items()}))
    else:
        click.echo("\n\n".join(_text(name, outcome) for name, outcome in outcomes.items()))
    if not all(isinstance(outcome, HostPlan) for outcome in outcomes.values()):
        sys.exit(1)


def _outcomes(inventory: str, limit: tuple[str, ...]) -> dict[str, Outcome]:
    hosts = read_fleet(inventory, limit)
    settings = check_fleet(hosts)
    surveys = survey_fleet(inventory, limit, hosts)
    cache, progress = Cache(), LineProgress(sys.stderr)
    outcomes: dict[str, Outcome] = {}
    for host in hosts:
        survey = surveys[host.name]
        if isinstance(survey, str):
            outcomes[host.name] = survey
        elif found := obstacles.of_host(survey):
            outcomes[host.name] = Blocked(tuple(found), None)
        else:
            made = plan_host(host.name, host.groups, settings[host.name], survey, cache, progress)
            outcomes[host.name] = made
            if isinstance(made, HostPlan) and (found := obstacles.of_plan(made, survey)):
                outcomes[host.name] = Blocked(tuple(found), made)
    return outcomes


def _data(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, str):
        return {"unreachable": outcome}
    if isinstance(outcome, HostPlan):
        return {"plan": outcome.to_dict()}
    if isinstance(outcome, Blocked):
        made = {"plan": outcome.plan.to_dict()} if outcome.plan else {}
        return {"obstacles": list(outcome.obstacles), **made}
    return {"problems": [{"key": p.key, "value": p.value, "what": p.what} for p in outcome]}


def _text(name: str, outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return _heading(name, "not reached", "red") + f"\n  {outcome}"
    if isinstance(outcome, Blocked):
        lines = [f"  - {obstacle}" for obstacle in outcome.obstacles]
        blocked = "\n".join([_heading(name, "cannot be provisioned", "red"), *lines])
        return f"{blocked}\n{_text(name, outcome.plan)}" if outcome.plan else blocked
    if not isinstance(outcome, HostPlan):
        lines = [f"  {p.key} = {p.value!r}: {p.what}" for p in outcome]
        return "\n".join([_heading(name, "cannot work like this", "red"), *lines])
    table = rows(outcome)
    # Reasons wrap at the edge of a terminal; in a pipe each stays on its line, for grep.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    first = max(len(label) for label, _, _ in table)
    second = min(max(len(value) for _, value, _ in table), 44)
    lines = [_heading(name, outcome.reasons["class"], "green")]
    for label, value, reason in table:
        start = f"  {label:<{first}}  {value:<{second}}  "
        lines += _wrapped(start.rstrip() if not reason else start, reason, width)
    lines += [click.style(f"  ! {warning}", fg="yellow") for warning in outcome.warnings]
    return "\n".join(lines)


def _heading(name: str, what: str, colour: str) -> str:
    return f"{click.style(name, bold=True)}  {click.style(what, fg=colour)}"


def _wrapped(start: str, reason: str, width: int) -> list[str]:
    room = width - len(start)
    if room < 24 or len(reason) <= room:
        return [start + reason]
    pieces = textwrap.wrap(reason, room)
    return [start + pieces[0], *(" " * len(start) + piece for piece in pieces[1:])]
