"""edge/agent.py: files/edge_host as one file, the same bytes everywhere, that any host can run."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edge import agent

MODULES = sorted(agent.PACKAGE.glob("*.py"))


def test_the_file_is_the_package() -> None:
    with zipfile.ZipFile(io.BytesIO(agent.agent_program())) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name) for name in archive.namelist()}
        marks = {(entry.date_time, entry.create_system) for entry in archive.infolist()}
    assert marks == {((1980, 1, 1, 0, 0, 0), 3)}  # neither the clock nor the system
    assert found.pop("__main__.py") == agent.START
    assert found == {f"edge_host/{path.name}": path.read_bytes() for path in MODULES}
    assert list(found) == sorted(found)


def test_another_checkout_makes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other times, modes and order of files; and what Python leaves beside them."""
    copy = tmp_path / "edge_host"
    (copy / "__pycache__").mkdir(parents=True)
    (copy / "__pycache__" / "gate.cpython-311.pyc").write_bytes(b"old")
    for number, path in enumerate(reversed(MODULES)):
        new = copy / path.name
        shutil.copyfile(path, new)
        new.chmod(0o600)
        os.utime(new, (1_000_000_000 + number,) * 2)
    with monkeypatch.context() as patch:
        patch.setattr(agent, "PACKAGE", copy)
        assert agent.agent_program.__wrapped__() == agent.agent_program()


def test_what_lies_about_is_not_imported(tmp_path: Path) -> None:
    """Neither from the directory and the environment, nor from beside the program."""
    for name in ("json.py", "edge_host.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    program = tmp_path / "edge-host"
    program.write_bytes(agent.agent_program())
    options = agent.SHEBANG.decode().split()[1:]
    done = subprocess.run(
        [sys.executable, *options, program, "probe"],
        input=b"{",
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path)},
    )
    assert done.stderr == b""
    assert done.stdout.startswith(b'{"verb": "probe"')


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_is_one_that_hosts_can_run(path: Path) -> None:
    """Ubuntu 22.04 has Python 3.10, and nothing but the standard library."""
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    # At the start: later, a rollout may have replaced the file that they would come from.
    assert [node for node in imports if node not in tree.body] == []
    own, others = set(), set()
    for node in imports:
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif node.level:
            assert node.level == 1
            own.add(node.module)
        else:
            others.add((node.module or "").split(".")[0])
    assert others <= sys.stdlib_module_names
    assert own <= {module.stem for module in MODULES}
