"""What the survey sees of changes by hand, so that a rollout can undo them."""

from __future__ import annotations

import pytest

from edge.survey import Survey, parse
from tests.unit.recorded import text_of

SUM = "0" * 64


def survey_with(section: str, line: str) -> Survey:
    """A provisioned host with one more line in a section."""
    text = text_of("provisioned").replace(f"@@{section}\n", f"@@{section}\n{line}\n", 1)
    assert line in text
    return parse(text)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/llama-server.service.d/override.conf",
        "/run/systemd/system/chat-proxy.socket.d/x.conf",
        "/etc/systemd/system.control/edgellm.slice.d/50-CPUWeight.conf",
        "/run/systemd/system.control/llama-server.service.d/50-MemoryMax.conf",
    ],
)
def test_drop_ins_of_our_units_are_overrides(path: str) -> None:
    assert not parse(text_of("provisioned")).installed.overrides
    survey = survey_with("files", f"{SUM} 644 root:root {path}")
    assert survey.installed.overrides == (path,)


@pytest.mark.parametrize(
    "path",
    ["/etc/systemd/system/llama-server.service", "/etc/systemd/journald.conf.d/50-edge-llm.conf"],
)
def test_our_own_files_are_none(path: str) -> None:
    assert not survey_with("files", f"{SUM} 644 root:root {path}").installed.overrides


def test_a_model_that_was_replaced_under_the_engine() -> None:
    lines = {
        "llama-server 7 abc stale": True,
        "llama-server 7 abc": False,
        "llama-server 7 -": False,
    }
    for line, stale in lines.items():
        text = "@@running\n" + line + "\n"
        whole = text_of("provisioned")
        start = whole.index("@@running\n")
        end = whole.index("@@", start + 2)
        running = parse(whole[:start] + text + whole[end:]).installed.running["llama-server"]
        assert (running.pid, running.stale) == (7, stale)
