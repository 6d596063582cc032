"""One line a check while they run, and a summary a host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from edge.verify import Target

START = time.monotonic()  # reading the fleet is part of it


@dataclass
class Tally:
    """A host's checks so far."""

    held: int = 0
    notes: int = 0
    failed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """Why, for each check that could not be made."""
    trouble: str = ""

    @property
    def good(self) -> bool:
        """Whether all was checked, and holds."""
        return bool(self.held and not (self.failed or self.unchecked or self.trouble))


class Lines:
    """Takes the place of pytest's terminal reporter."""

    def __init__(self, targets: Sequence[Target], *, found: bool, brief: bool = False) -> None:
        self.tallies = {t.name: Tally(trouble=t.trouble) for t in targets}
        self.found = found
        self.brief = brief
        self.width = max(map(len, self.tallies))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            click.echo(f"{report.nodeid}: {report.longrepr}", err=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A fixture that fails ends a check before its call.
        if report.when != "call" and report.passed:
            return
        host, check = names(report.nodeid)
        tally, said = self.tallies[host], dict(report.user_properties)
        start = f"{host:<{self.width}}  {check}  "
        if report.passed:
            tally.held += 1
            note, found = said.get("note"), said.get("found")
            tally.notes += bool(note)
            detail = [note] if note else []
            detail += [f"({found})"] if found and self.found else []
            colour = "yellow" if note else "green"
            if self.brief:
                return
            click.echo(start + "  ".join([click.style("ok", fg=colour), *map(str, detail)]))
        elif report.skipped:
            *_, why = report.longrepr
            tally.unchecked.append(why)
            if not self.brief:
                click.echo(start + click.style("not checked", fg="yellow") + f": {why}")
        else:
            tally.failed.append(check)
            click.echo(start + click.style("FAILED", fg="red", bold=True))
            for line in str(report.longrepr).splitlines():
                click.echo(f"{'':<{self.width}}    {line}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        good = [tally for tally in self.tallies.values() if tally.good]
        click.echo()
        for host, tally in self.tallies.items():
            click.echo(f"{host:<{self.width}}  {_summary(tally)}")
        took = time.monotonic() - START
        click.echo(
            f"{len(good)} of {len(self.tallies)} hosts hold what was planned ({took:.1f} s)."
        )
        if len(good) < len(self.tallies) and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _summary(tally: Tally) -> str:
    if tally.trouble:
        return click.style("NOT CHECKED", fg="red", bold=True) + f"  {tally.trouble}"
    reasons = ", ".join(dict.fromkeys(tally.unchecked))
    unchecked = f"{len(tally.unchecked)} not checked: {reasons}" if reasons else ""
    if tally.failed:
        count = tally.held + len(tally.failed)
        failed = "; ".join(tally.failed)
        word = click.style("FAILED", fg="red", bold=True)
        says = f"{word}  {len(tally.failed)} of {count} checks: {failed}"
        return f"{says}. {unchecked}" if unchecked else says
    if unchecked:
        return click.style("NOT CHECKED", fg="red", bold=True) + f"  {unchecked}"
    if not tally.held:
        return click.style("NOT CHECKED", fg="red", bold=True)
    notes = f", {tally.notes} with a note" if tally.notes else ""
    return click.style("ok", fg="green", bold=True) + f"  {tally.held} checks{notes}"


def names(nodeid: str) -> tuple[str, str]:
    """Host and check of a test: `test_engine.py::test_its_cpus[edge-n100]` is a check that reads
    "engine: its cpus"."""
    path, _, rest = nodeid.partition("::")
    function, _, host = rest.partition("[")
    host = host.removesuffix("]")
    topic = Path(path).stem.removeprefix("test_")
    return host, f"{topic}: {function.removeprefix('test_').replace('_', ' ')}"
