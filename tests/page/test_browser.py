"""A machine without a browser is told what to do."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.page.browser import executable

SCRIPT = Path(__file__).parents[2] / "scripts" / "browser"


def test_no_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"run scripts/browser"):
        executable()
    bash = ["/usr/bin/env", "-S", "/bin/bash", str(SCRIPT)]
    done = subprocess.run(bash, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "install Chromium or Chrome" in done.stderr


def test_another_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "my-chrome"
    monkeypatch.setenv("CHROMIUM", str(other))
    with pytest.raises(FileNotFoundError, match="my-chrome"):
        executable()
    env = {**os.environ, "CHROMIUM": str(other)}
    assert subprocess.run([SCRIPT], env=env, capture_output=True).returncode == 1
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert executable() == str(other)
    assert subprocess.run([SCRIPT], env=env).returncode == 0
