"""What `make demo` and `edge lab status` tell people to type is about the lab that there is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.cli import main
from edge.fleet import CHECKOUT
from lab.paths import Lab
from lab.processes import Process
from lab.record import Fleet, Host, Hub, save
from lab.ways_in import ways_in


@pytest.fixture
def trial(tmp_path: Path) -> tuple[Lab, Fleet]:
    """A lab with another name than the checkout's own, in a folder with a space."""
    lab = Lab("trial", tmp_path / "a lab", tmp_path)
    lab.state.mkdir()
    hub = Hub("http://127.0.0.1:1", "r", "v", "f", "0", Process(pid=1, started=0))
    hosts = (Host("trial-n100", "container", "n100", "10.9.8.10", "trial-veth0", None),)
    fleet = Fleet(lab.name, "10.9.8.0/24", hub, hosts)
    save(lab, fleet)
    return lab, fleet


def test_the_demos_last_lines_are_about_its_own_lab(trial: tuple[Lab, Fleet]) -> None:
    lab, fleet = trial
    asked = {"EDGE_LAB_NAME": "trial", "EDGE_LAB_STATE": str(lab.state)}
    chosen = f"EDGE_LAB_NAME=trial EDGE_LAB_STATE='{lab.state}' "
    lines = dict(line.split(None, 1) for line in ways_in(lab, fleet, asked).splitlines())
    assert lines["page"] == "http://10.9.8.10:8000"
    assert lines["key"].startswith(f"cat '{lab.state}/api-key'")
    assert lines["shell"] == f"{chosen}.venv/bin/edge lab ssh trial-n100"
    assert lines["verify"].startswith(chosen)
    assert lines["stop"] == f"{chosen}make demo-down"
    assert f"key {lab.ssh_key}, known_hosts {lab.known_hosts}" in lines["yours"]
    assert "shell    .venv/bin/edge" in ways_in(lab, fleet, {})


def test_status_names_the_files_of_the_keys_and_no_key(
    trial: tuple[Lab, Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _ = trial
    lab.api_key.write_text("edge-secret\n")
    monkeypatch.setenv("EDGE_LAB_NAME", "trial")
    monkeypatch.setenv("EDGE_LAB_STATE", str(lab.state))
    result = CliRunner().invoke(main, ["lab", "status"])
    assert result.exit_code == 0, result.output
    assert f"chat key    {lab.api_key}\n" in result.output
    assert f"user edge, key {lab.ssh_key}, known_hosts {lab.known_hosts}" in result.output
    assert "edge-secret" not in result.output


def test_the_demo_refuses_a_bad_name_before_it_sets_anything_up(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(CHECKOUT / "scripts" / "demo", scripts)
    (tmp_path / "lab").symlink_to(CHECKOUT / "lab")
    (tmp_path / "Makefile").write_text("setup:\n\t@echo set up; false\n")

    def demo(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(scripts / "demo")],
            env={**os.environ, "EDGE_LAB_NAME": name, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    refused = demo("too-long-a-name")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: EDGE_LAB_NAME='too-long-a-name': ")
    assert refused.stdout == ""
    assert demo("trial").stdout == "set up\n"
