"""Machines of the tests' own. They are emulated: a boot takes a minute, a rollout several."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.tiers import TIERS
from tests.lab.own_lab import OwnLab, lab_up
from tests.vm.machine import VmHost

_TIMEOUT_S = 2400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    """An n100 and a ryzen, up for the whole session. What a test changes there, it changes back."""
    hosts = ["n100", "ryzen"]
    with lab_up("m", tmp_path_factory.mktemp("machines"), hosts, TIERS["vm"]) as own:
        yield own


@pytest.fixture
def n100(machines: OwnLab) -> VmHost:
    return VmHost(machines, "n100")


@pytest.fixture
def ryzen(machines: OwnLab) -> VmHost:
    return VmHost(machines, "ryzen")


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], VmHost]]:
    """fresh("n100"): a machine just resumed, in a lab of its own that ends with the test."""
    # Labs of one process are told apart by a letter; `m` is taken.
    letters = iter(string.ascii_lowercase.replace("m", ""))
    with ExitStack() as labs:

        def make(hardware: str) -> VmHost:
            state = tmp_path_factory.mktemp(f"fresh-{hardware}")
            own = labs.enter_context(lab_up(next(letters), state, [hardware], TIERS["vm"]))
            return VmHost(own, hardware)

        yield make
