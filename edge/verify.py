"""`edge verify`: tests/host on the hosts of an inventory, and what those tests are given.

The tests run in a pytest of their own. Its controller calls `gather` once; workers get the result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge import keys
from edge.artifacts import Cache, LineProgress
from edge.fleet import CHECKOUT, FleetHost, read_fleet, survey_fleet
from edge.keys import KeysError
from edge.plan import HostPlan
from edge.planning import check_fleet, plan_host
from edge.settings import Settings
from edge.survey import Survey

TESTS = CHECKOUT / "tests" / "host"
HOSTS_AT_ONCE = 8  # a worker is a Python process of about 60 MB; it mostly waits for its host


@dataclass(frozen=True)
class Target:
    """One selected host: how to log in, and what it should be; or why it cannot be checked."""

    name: str
    data: Mapping[str, Any]
    plan: HostPlan | None
    trouble: str = ""


def gather(inventory: str, limit: Sequence[str]) -> list[Target]:
    """Every selected host with its plan, solved anew from its settings and a survey.

    Raises:
        FleetError: the inventory cannot be read, or `limit` selects nobody.
        SettingsInvalid: settings of at least one host are wrong.
    """
    hosts = read_fleet(inventory, limit)
    settings = check_fleet(hosts)
    surveys = survey_fleet(inventory, limit, hosts)
    cache = Cache()
    return [
        _target(inventory, host, settings[host.name], surveys[host.name], cache) for host in hosts
    ]


def _target(
    inventory: str, host: FleetHost, settings: Settings, survey: Survey | str, cache: Cache
) -> Target:
    def troubled(why: str) -> Target:
        return Target(host.name, host.data, None, why)

    if isinstance(survey, str):
        return troubled(f"not reached: {survey}")
    if survey.uid != 0:
        return troubled("the checks must read as root: log in as root, or set _sudo = True")
    if survey.installed.manifest is None:
        return troubled(f"not provisioned: run pyinfra {inventory} deploy.py")
    plan = plan_host(host.name, host.groups, settings, survey, cache, LineProgress(sys.stderr))
    if isinstance(plan, list):
        return troubled("no plan can be made: " + "; ".join(map(str, plan)))
    return Target(host.name, host.data, plan)


def read_key(file: str) -> str:
    """The key in an operator's file.

    Raises:
        KeysError: it does not hold one key, and nothing else.
    """
    try:
        return keys.secret(Path(file).read_text(encoding="utf-8"), file)
    except UnicodeDecodeError:
        raise KeysError(f"{file} is no text in UTF-8") from None


@click.command()
@click.argument("inventory")
@click.option("--limit", multiple=True, metavar="PATTERN", help="Only these hosts or groups.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, readable=True, resolve_path=True),
    help="A file with one API key: hosts are asked over the network with it, too.",
)
@click.option("--junit", type=click.Path(dir_okay=False), help="Write a JUnit report to this file.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a web page to this file.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what failed, and a line a host.")
@click.option("-v", "--verbose", is_flag=True, help="Say what was found where all is well, too.")
def verify(
    inventory: str,
    limit: tuple[str, ...],
    key_file: str | None,
    junit: str | None,
    html: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check that every host of INVENTORY is what its plan says, by what it really does.

    Changes nothing. Exits 0 only if every selected host was checked and every check holds.

    A file for --key-file is made like this, by those who have not kept a key; then roll out:

    \b
      (umask 077; edge key new verify --file inventory/api-keys > ~/verify.key)
    """
    if key_file:
        try:
            read_key(key_file)
        except KeysError as error:
            raise click.ClickException(
                f"--key-file: {error}; `edge verify --help` says how to make such a file"
            ) from None
    # One word each: pytest would read a word that begins with @ as a file of arguments.
    words = [f"--inventory={inventory}", *(f"--limit={each}" for each in limit)]
    words += [f"--key-file={key_file}"] if key_file else []
    words += ["--junitxml", junit] if junit else []
    words += ["--html", html, "--self-contained-html"] if html else []
    words += ["--found"] if verbose else []
    words += ["--brief"] if quiet else []
    sys.exit(1 if run_checks(words) else 0)


def run_checks(words: Sequence[str]) -> int:
    """Run tests/host with options of its conftest; returns pytest's exit code."""
    # Only the plugins that we use: others that are installed here have no say in this.
    plugins = ["xdist.plugin"]
    if "--html" in words:
        plugins += ["pytest_metadata.plugin", "pytest_html.plugin", "pytest_html.fixtures"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(TESTS)),
            *("-c", str(TESTS / "pytest.ini"), "--rootdir", str(TESTS)),
            *("-p", "no:terminal", "-p", "no:cacheprovider"),
            *(word for plugin in plugins for word in ("-p", plugin)),
            *("--dist", "loadscope", "-n", "auto"),  # by host, see tests/host/scheduling.py
            *words,
        ],
        env=environment,
        check=False,
    ).returncode
