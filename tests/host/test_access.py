"""Whether a host can be checked at all."""

import pytest
from checks import Wrong
from machine import Machine

from edge.verify import Target


@pytest.mark.every_host
def test_can_be_checked(target: Target, request: pytest.FixtureRequest) -> None:
    if target.trouble:
        reason, _, remedy = target.trouble.partition(": ")
        raise Wrong("a provisioned host that answers", reason, target.name, remedy or "see above")
    machine: Machine = request.getfixturevalue("machine")
    machine.run("true")
