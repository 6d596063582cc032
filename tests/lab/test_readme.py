"""The README's curl command, as it stands there, against a real host."""

from __future__ import annotations

import json
import re
import subprocess

from edge.fleet import CHECKOUT
from tests.lab.conftest import OwnLab
from tests.lab.rollout import deploy


def test_curl_streams_events(own_lab: OwnLab) -> None:
    run = deploy(own_lab)
    assert run.code == 0, run.log
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^curl -N .*$", readme, re.M)
    assert command is not None
    address = own_lab.host("n100").address
    done = subprocess.run(
        ["bash", "-c", command[0].replace("DEVICE", address)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data:")]
    assert sum("text" in event for event in events) > 1
    assert events[-1]["done"] is True
    assert {"finish_reason", "usage", "timings"} <= set(events[-1])
