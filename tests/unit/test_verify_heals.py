"""What the survey sees of changes by hand, so that a rollout can undo them."""

from __future__ import annotations

import re

import pytest

from edge.survey import Installed
from edge.survey_script import parse
from tests.unit.recorded import text_of


def with_section(name: str, content: str) -> Installed:
    """A provisioned host on which one section reads like this."""
    text, count = re.subn(
        rf"^@@{name}\n.*?(?=^@@)",
        f"@@{name}\n{content}\n",
        text_of("provisioned"),
        flags=re.M | re.S,
    )
    assert count == 1
    return parse(text).installed


def overrides(path: str) -> tuple[str, ...]:
    return with_section("files", f"{'0' * 64} 644 root:root {path}").overrides


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/llama-server.service.d/override.conf",
        "/run/systemd/system/chat-proxy.socket.d/x.conf",
        "/etc/systemd/system.control/edgellm.slice.d/50-CPUWeight.conf",
        "/run/systemd/system.control/llama-server.service.d/50-MemoryMax.conf",
        "/usr/local/lib/systemd/system/chat-proxy.service.d/x.conf",
        "/etc/systemd/system/llama-.service.d/x.conf",
    ],
)
def test_drop_ins_of_our_units_are_overrides(path: str) -> None:
    assert overrides(path) == (path,)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/llama-server.service",
        "/etc/systemd/journald.conf.d/50-edge-llm.conf",
        "/etc/default/grub.d/99-edge-llm.cfg",
    ],
)
def test_our_own_files_are_none(path: str) -> None:
    assert overrides(path) == ()


@pytest.mark.parametrize(
    ("line", "is_open"),
    [
        ("755 root:root /opt/edge-llm/bin", False),
        ("700 root:root /var/lib/edge-llm", False),
        ("750 root:edge-llm /etc/edge-llm", False),
        ("755 pi:root /opt/edge-llm/bin", True),
        ("775 root:root /opt/edge-llm/engine/releases", True),
        ("1777 root:root /opt/edge-llm", True),
        ("half a name", False),
    ],
)
def test_folders_that_others_than_root_can_write_to(line: str, *, is_open: bool) -> None:
    path = line.split(" ", 2)[2]
    assert with_section("folders", line).open_folders == ((path,) if is_open else ())


@pytest.mark.parametrize(
    ("line", "stale"), [("7 abc stale", True), ("7 abc", False), ("7 -", False)]
)
def test_a_model_that_was_replaced_under_the_engine(line: str, *, stale: bool) -> None:
    running = with_section("running", f"llama-server {line}").running["llama-server"]
    assert (running.pid, running.stale) == (7, stale)
