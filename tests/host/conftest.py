"""What `edge verify` runs on any fleet. By hand: `pytest -c tests/host/pytest.ini tests/host
--inventory inventory/lab.py`.

The inventory is read, surveyed and planned once, by the process that controls the run; every check
then reads on the host what the host really does.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import report
from checks import Say, Wrong
from login import Login, LoginError
from machine import Down, Lost, Machine

from edge.fleet import FleetError
from edge.plan import HostPlan
from edge.planning import SettingsInvalid
from edge.render import Rendered, render
from edge.verify import HOSTS_AT_ONCE, Target, gather, read_key

# These come first: they say why others are not checked.
SAY_WHY = ("test_can_be_checked", "test_run_and_start_at_boot")
TARGETS = pytest.StashKey[dict[str, Target]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inventory", help="What pyinfra takes for an inventory.")
    parser.addoption("--limit", action="append", default=[], help="Only these hosts or groups.")
    parser.addoption("--key-file", help="A file with an API key, to ask over the network with.")
    parser.addoption("--brief", action="store_true", help="Say only what failed.")
    parser.addoption("--found", action="store_true", help="Say what was found where all is well.")


def targets(config: pytest.Config) -> dict[str, Target]:
    """The selected hosts, worked out once; a worker has them from the process that started it."""
    if TARGETS not in config.stash:
        if hasattr(config, "workerinput"):
            found = pickle.loads(config.workerinput["targets"])
        elif not config.getoption("inventory"):
            raise pytest.UsageError("say which hosts: --inventory INVENTORY (as pyinfra takes it)")
        else:
            try:
                found = gather(config.getoption("inventory"), config.getoption("limit"))
            except (FleetError, SettingsInvalid) as error:
                raise pytest.UsageError(str(error)) from None
            found = [_with_login(target) for target in found]
        config.stash[TARGETS] = {target.name: target for target in found}
    return config.stash[TARGETS]


def _with_login(target: Target) -> Target:
    """The target, or why we cannot log in to it."""
    try:
        Login.of(target.name, target.data)
    except LoginError as error:
        return replace(target, trouble=target.trouble or str(error))
    return target


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: one process a host, none where there is one host."""
    count = sum(1 for target in targets(config).values() if not target.trouble)
    return 0 if count < 2 else min(count, HOSTS_AT_ONCE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All checks of a host in one process: it has the connection, and keeps what was read."""
    from scheduling import HostScheduling  # xdist is there if we are asked

    return HostScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    # Pickled, not a file: the data of an inventory may hold secrets.
    node.workerinput["targets"] = pickle.dumps(list(targets(node.config).values()))


def pytest_configure(config: pytest.Config) -> None:
    worker = hasattr(config, "workerinput")
    if not worker and not config.pluginmanager.hasplugin("terminalreporter"):
        config.pluginmanager.register(
            report.Lines(
                list(targets(config).values()),
                found=config.getoption("found"),
                brief=config.getoption("brief"),
            )
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parameters = [
        pytest.param(target, id=name) for name, target in targets(metafunc.config).items()
    ]
    metafunc.parametrize("target", parameters, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A host that cannot be checked fails once, not thirty times; a service that is down is said
    before what depends on it."""
    kept = [
        item
        for item in items
        if not item.callspec.params["target"].trouble or item.get_closest_marker("every_host")
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    hosts = list(targets(config))
    kept.sort(
        key=lambda item: (
            hosts.index(item.callspec.params["target"].name),
            item.originalname not in SAY_WHY,
        )
    )
    items[:] = kept


@pytest.fixture(scope="session")
def machine(target: Target) -> Iterator[Machine]:
    """The host itself, for reading."""
    with Machine.of(target) as machine:
        yield machine


@pytest.fixture(scope="session")
def plan(target: Target) -> HostPlan:
    """What the host should run with."""
    assert target.plan is not None
    return target.plan


@pytest.fixture(scope="session")
def rendered(plan: HostPlan) -> Rendered:
    """The files that the host should have."""
    return render(plan)


@pytest.fixture(scope="session")
def key(pytestconfig: pytest.Config) -> str | None:
    """An API key of the operator's, to ask over the network with."""
    file = pytestconfig.getoption("key_file")
    return read_key(file) if file else None


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    """Notes on a check that holds."""
    return Say(request.node.user_properties, sudo=_sudo(request.node))


def _sudo(item: Any) -> bool:
    """Whether whoever logs in to the host of a check needs sudo there."""
    return bool(item.callspec.params["target"].data.get("_sudo"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Failures as a person reads them, also in the JUnit and web reports."""
    made = yield
    if call.excinfo is not None and made.failed:
        error = call.excinfo.value
        if isinstance(error, Wrong):
            heal = f"pyinfra {item.config.getoption('inventory')} deploy.py heals it"
            made.longrepr = error.text(heal, sudo=_sudo(item))
        elif isinstance(error, Lost):
            made.longrepr = str(error)
        elif isinstance(error, Down):
            path, line, _ = item.location
            made.outcome = "skipped"
            made.longrepr = (path, line or 0, str(error))
    return made
