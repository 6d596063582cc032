"""What the README tells to type on or at a device, as it stands there, with a real host."""

from __future__ import annotations

import re

import pytest

from edge.fleet import CHECKOUT
from tests.lab.conftest import OwnLab
from tests.lab.rollout import deploy

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def served(own_lab: OwnLab) -> OwnLab:
    run = deploy(own_lab)
    assert run.code == 0, run.log
    return own_lab


LEFT = """
systemctl is-system-running
systemctl list-units --all --no-legend --plain 'chat-proxy*' 'llama-server*' 'edge*'
find /opt /etc /var/lib /boot \\( -path '*edge-llm*' -o -path '*edgellm*' \
  -o -path '*llama-server*' -o -path '*chat-proxy*' \\)
id -u edge-llm 2>/dev/null
ss -Hltn 'sport = :8000 or sport = :8080'
"""


@pytest.mark.parametrize("hardware", ["ryzen", "pi5"])
def test_the_undo_leaves_nothing(served: OwnLab, hardware: str) -> None:
    host = served.host(hardware)
    undo = re.search(r"in this order:\n\n```sh\n(.*?)```", README, re.S)
    assert undo is not None
    done = served.ssh(host, f"sudo bash -e <<'UNDO'\n{undo[1]}UNDO\n")
    assert done.returncode == 0, done.stderr
    assert "triggering units are still active" not in done.stderr
    assert served.ssh(host, f"sudo sh <<'LEFT'\n{LEFT}LEFT\n").stdout.split() == ["running"]
    # The next rollout finds a bare host.
    run = deploy(served, "--limit", host.name)
    assert run.code == 0, run.log
