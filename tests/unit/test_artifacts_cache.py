from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from edge.artifacts import Artifact, ArtifactError, Cache, LineProgress
from edge.artifacts import cache as cache_module
from edge.artifacts import progress as progress_module
from edge.artifacts.tarball import pack

BODY = b"weights" * 1000
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def add(cache: Cache, tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(BODY)
    return cache.add(file, SHA)


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("EDGE_LLM_CACHE", "/own")
    assert Cache().root == Path("/own")
    monkeypatch.delenv("EDGE_LLM_CACHE")
    assert Cache().root == Path("/x/edge-llm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Cache().root == Path("~/.cache/edge-llm").expanduser()


def test_a_file_is_moved_in_and_found(cache: Cache, tmp_path: Path) -> None:
    assert cache.blob(SHA) is None
    path = add(cache, tmp_path)
    assert cache.blob(SHA) == path
    assert path.read_bytes() == BODY
    assert not (tmp_path / "file").exists()


def test_another_digest_is_refused_and_nothing_enters(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"an error page")
    with pytest.raises(ArtifactError, match=f"expected sha256 {SHA}"):
        cache.add(file, SHA)
    assert cache.blob(SHA) is None
    assert file.exists()


def test_an_unchanged_blob_is_not_hashed_again(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add(cache, tmp_path)
    hashed: list[Path] = []
    real = cache_module.sha256_of
    monkeypatch.setattr(cache_module, "sha256_of", lambda p: hashed.append(p) or real(p))
    assert cache.blob(SHA) == path
    assert hashed == []
    os.utime(path, (1, 1))  # touched: hashed once, then known again
    assert cache.blob(SHA) == path
    assert cache.blob(SHA) == path
    assert hashed == [path]


def test_a_damaged_blob_is_dropped(cache: Cache, tmp_path: Path) -> None:
    path = add(cache, tmp_path)
    path.write_bytes(b"X" + BODY[1:])
    assert cache.blob(SHA) is None
    assert not path.exists()


def test_a_record_lives_as_long_as_its_blob(cache: Cache, tmp_path: Path) -> None:
    path = add(cache, tmp_path)
    artifact = Artifact(path=path, sha256=SHA, size_bytes=len(BODY), release_id="b1-build")
    cache.record("engines", "b1-build", artifact)
    assert cache.recorded("engines", "b1-build") == artifact
    assert cache.recorded("engines", "b2-build") is None
    path.unlink()
    assert cache.recorded("engines", "b1-build") is None


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "A" * 64, "a" * 63])
def test_only_a_digest_names_a_blob(cache: Cache, sha256: str) -> None:
    with pytest.raises(ArtifactError, match="not a sha256"):
        cache.blob(sha256)


def test_a_lock_keeps_another_controller_out(cache: Cache) -> None:
    code = (
        "import sys, pathlib\nfrom edge.artifacts import Cache, LineProgress\n"
        "with Cache(pathlib.Path(sys.argv[1])).lock('one', LineProgress(sys.stdout)):\n"
        "    print('in', pathlib.Path(sys.argv[2]).exists())"
    )
    mark = cache.work() / "released"
    command = [sys.executable, "-c", code, str(cache.root), str(mark)]
    with cache.lock("one"):
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "another controller works on one; waiting\n"
        mark.touch()  # were the other already in, it would not have seen it
    assert other.communicate(timeout=30)[0] == "in True\n"


def test_the_same_content_packs_to_the_same_bytes(tmp_path: Path) -> None:
    for name, order, when, mode in (("a", 1, 1_000, 0o644), ("b", -1, 2_000, 0o600)):
        folder = tmp_path / name
        for file in ("x/one", "x/two", "run")[::order]:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
            path.chmod(0o700 if file == "run" else mode)
            os.utime(path, (when, when))
        pack(folder, tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        modes = {entry.name: (entry.mode, entry.uid) for entry in tar}
    assert list(modes) == ["run", "x", "x/one", "x/two"]
    assert modes["run"] == (0o755, 0)
    assert modes["x/one"] == (0o644, 0)


def test_progress_is_a_line_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 2.0, 2.5, 4.0, 5.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start("model", 100_000_000)
    for _ in range(4):
        progress.advance(20_000_000)
    progress.done()
    assert stream.getvalue().splitlines() == [
        "model: 100.0 MB",
        "model: 40%, 40.0 MB, 20.0 MB/s, 3 s left",
        "model: 80%, 80.0 MB, 20.0 MB/s, 1 s left",
        "model: done, 80.0 MB in 5 s",
    ]
