"""Parts of the engine's build that need no compiler. The real build: tests/lab."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

from edge.artifacts import ArtifactError, Cache, SilentProgress, engine_build
from edge.artifacts.engine_pins import SDIST_VERSION


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.events: list[object] = []

    def start(self, label: str, total: int | None, *, unit: str = "B") -> None:
        self.events.append((label, total, unit))

    def advance(self, amount: int) -> None:
        self.events.append(amount)

    def done(self) -> None:
        self.events.append("done")


def run(code: str, log: Path, progress: Recorder) -> None:
    engine_build._logged([sys.executable, "-c", code], log, "building", progress)


def test_ninja_s_steps_are_the_progress(tmp_path: Path) -> None:
    progress = Recorder()
    code = "print('[1/4] CXX a.o')\nprint('a.cpp: warning')\nprint('[3/4] CXX b.o')"
    run(code, tmp_path / "log", progress)
    assert progress.events == [("building", 4, "steps"), 1, 2, "done"]
    assert (tmp_path / "log").read_text().splitlines()[1] == "a.cpp: warning"


def test_a_failed_build_shows_its_end_and_where_the_rest_is(tmp_path: Path) -> None:
    code = "print('[1/4] CXX a.o')\nprint('a.cpp: error: no such thing')\nraise SystemExit(3)"
    progress = Recorder()
    with pytest.raises(ArtifactError) as error:
        run(code, tmp_path / "log", progress)
    for part in ("building: failed (3)", str(tmp_path / "log"), "error: no such thing"):
        assert part in str(error.value)
    assert progress.events[-1] != "done"


def test_unpacks_llama_cpp_alone_and_whole(tmp_path: Path) -> None:
    sdist, top = tmp_path / "sdist.tar.gz", f"llama_cpp_python-{SDIST_VERSION}"
    with tarfile.open(sdist, "w:gz") as tar:
        for name in ("setup.py", "vendor/llama.cpp/CMakeLists.txt", "vendor/llama.cpp/src/a.cpp"):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"text"))
    half = tmp_path / "work" / "unpacking"
    half.mkdir(parents=True)
    (half / "left-by-a-killed-run").touch()
    target = engine_build._unpacked(sdist, tmp_path / "work" / "source", SilentProgress())
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == ["CMakeLists.txt", "src/a.cpp"]
    assert not half.exists()


def test_without_an_index_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ArtifactError, match=r"could not download llama-cpp-python[^$]*FIND_LINKS"):
        engine_build._sdist(Cache(tmp_path / "cache"), SilentProgress())
