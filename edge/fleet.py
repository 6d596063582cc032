"""Which hosts there are and what they are, by asking pyinfra in a process of its own.

pyinfra patches the standard library when it is imported (gevent), so it is never imported here.
Whatever pyinfra takes for an inventory is taken: a directory, a file, @local, a list of hosts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from edge.survey import Survey
from edge.survey_script import SurveyError, parse

CHECKOUT = Path(__file__).resolve().parent.parent
FACT = "edge.facts.HostSurvey"


class FleetError(Exception):
    """The inventory cannot be read, or nobody is selected. The text is pyinfra's own message."""


@dataclass(frozen=True)
class FleetHost:
    """A host of the inventory: its name, its groups (hardware class and others), its data."""

    name: str
    groups: tuple[str, ...]
    data: Mapping[str, Any]


def read_fleet(inventory: str, limit: Sequence[str] = ()) -> list[FleetHost]:
    """The hosts of an inventory, or those that `limit` (names, patterns, groups) selects.

    Raises:
        FleetError: the inventory cannot be read, is empty, or `limit` names nobody.
    """
    run = _pyinfra(inventory, limit, "debug-inventory")
    if run.returncode:
        raise FleetError(_error(run.stderr))
    hosts = [
        FleetHost(row["name"], tuple(dict.fromkeys(row["groups"])), row["data"])
        for row in json.loads(run.stdout)
    ]
    # debug-inventory checks the limit (edge.pyinfra_patches) but lists every host.
    return [host for host in hosts if not limit or _selected(host, hosts, limit)]


def survey_fleet(
    inventory: str, limit: Sequence[str] = (), hosts: Sequence[FleetHost] | None = None
) -> dict[str, Survey | str]:
    """Survey the selected hosts at the same time, in one round trip each.

    `hosts` is what `read_fleet` gave for the same arguments, if the caller has it already.

    Returns:
        By host, in the inventory's order: its survey, or why there is none.

    Raises:
        FleetError: as `read_fleet`.
    """
    if hosts is None:
        hosts = read_fleet(inventory, limit)
    run = _pyinfra(inventory, limit, "fact", FACT)
    try:
        answers = json.loads(run.stdout)[FACT] if run.stdout.strip() else {}
    except (ValueError, KeyError):
        raise FleetError(f"pyinfra did not answer with facts: {_error(run.stderr)}") from None
    return {host.name: _survey(host.name, answers.get(host.name), run.stderr) for host in hosts}


def _survey(name: str, text: str | None, log: str) -> Survey | str:
    if text is None:
        return _reason(name, log)
    try:
        return parse(text)
    except SurveyError as error:
        return str(error)


def _pyinfra(
    inventory: str, limit: Iterable[str], *command: str
) -> subprocess.CompletedProcess[str]:
    if Path(inventory).exists():
        inventory = str(Path(inventory).resolve())  # it runs in the checkout, for config.py
    limits = [part for pattern in limit for part in ("--limit", pattern)]
    return _run("--json", *limits, inventory, *command)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyinfra", *arguments],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _selected(host: FleetHost, hosts: Sequence[FleetHost], limit: Sequence[str]) -> bool:
    """As pyinfra decides it: a pattern is a group's name if there is such a group."""
    groups = {group for each in hosts for group in each.groups}
    return any(
        pattern in host.groups if pattern in groups else fnmatch(host.name, pattern)
        for pattern in limit
    )


def _reason(name: str, log: str) -> str:
    """What pyinfra's log says of a host, but for its progress; else its last error."""
    lines = re.findall(rf"^ *\[{re.escape(name)}\] +(.*\S)", log, re.MULTILINE)
    said = [line for line in lines if line != "Connected" and not line.startswith("Loaded fact")]
    return "; ".join(dict.fromkeys(said)) or _error(log)


def _error(log: str) -> str:
    """pyinfra's last message: what follows the last "--> … error:", else the last lines."""
    found = re.findall(r"^--> (?:pyinfra error|[^:\n]*error[^:\n]*): (.*)", log, re.M | re.S)
    text = found[-1] if found else "\n".join(log.strip().splitlines()[-3:])
    return text.strip() or "pyinfra ended without a word"
