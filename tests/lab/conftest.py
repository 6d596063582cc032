"""A lab of the tests' own: another name, network and state directory than the checkout's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.chat_host import ChatHost, connect
from tests.lab.own_lab import OwnLab, lab_up
from tests.lab.rollout import deploy


@pytest.fixture(scope="session")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    """One host of each class, up for the whole session."""
    with lab_up("t", tmp_path_factory.mktemp("lab")) as own:
        yield own


@pytest.fixture(scope="session")
def chat_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHost]:
    """One provisioned host that serves: nobody rolls out to it again."""
    with lab_up("c", tmp_path_factory.mktemp("chat"), hosts=1) as own:
        done = deploy(own)
        assert done.code == 0, done.log
        with connect(own, own.host("n100")) as host:
            yield host


@pytest.fixture
def chat(chat_host: ChatHost) -> ChatHost:
    """The host with an idle engine: nothing of the test before is left in it."""
    chat_host.await_busy(0, seconds=200)
    return chat_host
