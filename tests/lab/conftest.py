"""A lab of the tests' own: another name, network and state directory than the checkout's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab import fleet
from tests.lab.own_lab import OwnLab, make_lab


@pytest.fixture(scope="session")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    """One host of each class, up for the whole session."""
    lab = make_lab(f"t{os.getpid() % 1_000_000}", tmp_path_factory.mktemp("lab"))
    try:
        fleet.up(lab)
        yield OwnLab(lab)
    finally:
        fleet.down(lab)
