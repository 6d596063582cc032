"""fetch_model against a real web server and the real hub client."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.artifacts import (
    ArtifactError,
    Cache,
    LocalModel,
    SilentProgress,
    fetch_model,
    parse_source,
)
from edge.artifacts import download as download_module
from tests.unit.artifacts_server import Reply, Server, running_server
from tests.unit.tiny_gguf import write_gguf

REPO, REVISION = "Owner/Tiny-GGUF", "9217f5db79a29953eb74d5343926648285ec7e67"
HUB_SOURCE = f"hub:{REPO}@{REVISION}/tiny-q4.gguf"


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(download_module, "_PAUSE_S", 0)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", tokens=20_000).read_bytes()


@pytest.fixture(scope="module")
def sha256(model: bytes) -> str:
    return hashlib.sha256(model).hexdigest()


def fetch(source: str, sha256: str | None, cache: Cache, *, hub: str | None = None) -> LocalModel:
    return fetch_model(
        parse_source(source), sha256, cache=cache, hub_endpoint=hub, progress=SilentProgress()
    )


def leftovers(cache: Cache) -> list[str]:
    """Everything in the cache that looks like an artifact."""
    return sorted(path.name for path in (cache.root / "blobs").glob("*"))


# Over HTTP


def test_https_style_source(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    server.replies["/m/tiny-q4.gguf"] = Reply(model)
    source = f"{server.url}/m/tiny-q4.gguf"
    local = fetch(source, sha256, cache)
    assert local.path.read_bytes() == model
    assert (local.sha256, local.size_bytes) == (sha256, len(model))
    assert (local.info.file_name, local.info.vocab_size) == ("tiny-q4.gguf", 20_000)
    assert fetch(source, sha256, cache) == local
    assert len(server.gets("/m/tiny-q4.gguf")) == 1


def test_a_cut_is_resumed(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    server.replies["/m.gguf"] = Reply(model, cuts=[100_000, 50_000])
    assert fetch(f"{server.url}/m.gguf", sha256, cache).path.read_bytes() == model
    assert server.gets("/m.gguf") == [None, "bytes=100000-", "bytes=150000-"]


def test_the_next_run_goes_on_where_this_one_gave_up(
    server: Server, cache: Cache, model: bytes, sha256: str
) -> None:
    server.replies["/m.gguf"] = Reply(model, cuts=[100_000, 0, 0, 0, 0, 0])
    with pytest.raises(ArtifactError, match="100000 bytes are kept"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    assert leftovers(cache) == []
    server.asked.clear()
    assert fetch(f"{server.url}/m.gguf", sha256, cache).path.read_bytes() == model
    assert server.gets("/m.gguf") == ["bytes=100000-"]


def test_a_server_without_range(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    server.replies["/m.gguf"] = Reply(model, ranges=False, cuts=[200_000, 100_000])
    assert fetch(f"{server.url}/m.gguf", sha256, cache).path.read_bytes() == model
    assert len(server.gets("/m.gguf")) == 3


def test_a_killed_run_that_had_it_all(
    server: Server, cache: Cache, model: bytes, sha256: str
) -> None:
    (cache.work("downloads") / f"{sha256}.part").write_bytes(model)
    server.replies["/m.gguf"] = Reply(model)
    assert fetch(f"{server.url}/m.gguf", sha256, cache).path.read_bytes() == model
    assert server.gets("/m.gguf") == [f"bytes={len(model)}-"]


@pytest.mark.parametrize("surplus", [-1000, 1000])
def test_a_half_of_another_file_heals(
    server: Server, cache: Cache, model: bytes, sha256: str, surplus: int
) -> None:
    part = cache.work("downloads") / f"{sha256}.part"
    part.write_bytes(b"x" * (len(model) + surplus))
    server.replies["/m.gguf"] = Reply(model)
    assert fetch(f"{server.url}/m.gguf", sha256, cache).path.read_bytes() == model


def test_a_wrong_file_never_becomes_a_blob(server: Server, cache: Cache, model: bytes) -> None:
    server.replies["/m.gguf"] = Reply(model)
    with pytest.raises(ArtifactError) as error:
        fetch(f"{server.url}/m.gguf", "0" * 64, cache)
    for part in ("0" * 64, hashlib.sha256(model).hexdigest(), f"{len(model)} bytes", "m.gguf"):
        assert part in str(error.value)
    assert leftovers(cache) == []
    assert list(cache.work("downloads").iterdir()) == []


def test_an_error_page_is_called_one(server: Server, cache: Cache, sha256: str) -> None:
    page = b"<!DOCTYPE html><html><body>Sign in</body></html>"
    server.replies["/m.gguf"] = Reply(page, content_type="text/html")
    with pytest.raises(ArtifactError, match="it is a web page"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    assert leftovers(cache) == []


def test_not_found(server: Server, cache: Cache, sha256: str) -> None:
    with pytest.raises(ArtifactError, match="answers HTTP 404"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    assert len(server.gets("/m.gguf")) == 1  # asking again would not help


def test_a_busy_server_is_asked_again(
    server: Server, cache: Cache, model: bytes, sha256: str
) -> None:
    server.replies["/m.gguf"] = Reply(b"busy", status=503)
    with pytest.raises(ArtifactError, match="HTTP 503"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    assert len(server.gets("/m.gguf")) == 5


def test_nobody_there(server: Server, cache: Cache, sha256: str) -> None:
    server.server_close()
    with pytest.raises(ArtifactError, match=r"cannot be fetched.*refused"):
        fetch(f"{server.url}/m.gguf", sha256, cache)


def test_a_stall_is_given_up(
    server: Server, cache: Cache, model: bytes, sha256: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_STALL_S", 0.1)
    held = threading.Event()
    server.replies["/m.gguf"] = Reply(model, held=held)
    with pytest.raises(ArtifactError, match="timed out"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    held.set()
    assert len(server.gets("/m.gguf")) == 5


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, server: Server, cache: Cache, model: bytes, sha256: str
) -> None:
    server.replies["/m.gguf"] = Reply(model)
    (cache.work("downloads") / f"{sha256}.part").mkdir()
    with pytest.raises(ArtifactError, match=r"cannot be written to .*EDGE_LLM_CACHE"):
        fetch(f"{server.url}/m.gguf", sha256, cache)
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="file cannot be used: Not a directory; EDGE_LLM_CACHE"):
        fetch(f"{server.url}/m.gguf", sha256, Cache(tmp_path / "file"))


def test_a_network_source_needs_a_digest(cache: Cache) -> None:
    with pytest.raises(ArtifactError, match="model_sha256 is needed"):
        fetch("https://models.example/m.gguf", None, cache)


def test_two_controllers_at_once_download_once(
    server: Server, cache: Cache, model: bytes, sha256: str
) -> None:
    held = threading.Event()
    server.replies["/m.gguf"] = Reply(model, held=held)
    code = (
        "import sys, pathlib\nfrom edge.artifacts import *\n"
        "source, sha, root = sys.argv[1:]\n"
        "local = fetch_model(parse_source(source), sha, cache=Cache(pathlib.Path(root)),\n"
        "                    hub_endpoint=None, progress=LineProgress(sys.stdout))\n"
        "print(local.sha256)"
    )
    command = [sys.executable, "-c", code, f"{server.url}/m.gguf", sha256, str(cache.root)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.arrived.wait(timeout=30)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    says = second.stdout.readline()
    held.set()
    assert says == f"another controller works on blob-{sha256}; waiting\n"
    for one in (first, second):
        assert one.communicate(timeout=30)[0].splitlines()[-1] == sha256
    assert len(server.gets("/m.gguf")) == 1


# From a hub


def test_hub(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    path = server.add_hub_file(REPO, REVISION, "tiny-q4.gguf", model)
    local = fetch(HUB_SOURCE, sha256, cache, hub=server.url)
    assert local.path.read_bytes() == model
    assert local.info.file_name == "tiny-q4.gguf"
    assert [asked[:2] for asked in server.asked] == [("HEAD", path), ("GET", path)]
    fetch(HUB_SOURCE, sha256, cache, hub="http://127.0.0.1:1")  # from the cache: nobody is asked
    assert len(server.asked) == 2


def test_hub_resumes_across_runs(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    path = server.add_hub_file(REPO, REVISION, "tiny-q4.gguf", model)
    server.replies[path].cuts = [70_000, 0, 0, 0, 0, 0]
    with pytest.raises(ArtifactError, match="70000 bytes are kept"):
        fetch(HUB_SOURCE, sha256, cache, hub=server.url)
    server.asked.clear()
    fetch(HUB_SOURCE, sha256, cache, hub=server.url)
    assert server.gets(path) == ["bytes=70000-"]


def test_hub_gets_the_token(
    server: Server, cache: Cache, model: bytes, sha256: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    server.add_hub_file(REPO, REVISION, "tiny-q4.gguf", model)
    fetch(HUB_SOURCE, sha256, cache, hub=server.url)
    assert server.tokens == ["Bearer hf_test", "Bearer hf_test"]


def test_hub_names_near_files(server: Server, cache: Cache, model: bytes, sha256: str) -> None:
    server.add_hub_file(REPO, REVISION, "tiny-q4.gguf", model)
    server.add_hub_file(REPO, REVISION, "README.md", b"# Tiny")
    with pytest.raises(ArtifactError) as error:
        fetch(f"hub:{REPO}@{REVISION}/Tiny-Q4_K_M.gguf", sha256, cache, hub=server.url)
    for part in ("Tiny-Q4_K_M.gguf is not in", REPO, "near are tiny-q4.gguf.", "model_source"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "RevisionNotFound", f"has no revision {REVISION}"),
        (401, "RepoNotFound", "or it is private"),
        (403, "GatedRepo", "licence to be accepted"),
    ],
)
def test_hub_says_no(
    server: Server, cache: Cache, sha256: str, status: int, code: str, says: str
) -> None:
    path = f"/{REPO}/resolve/{REVISION}/tiny-q4.gguf"
    server.replies[path] = Reply(b"", status=status, headers={"X-Error-Code": code})
    with pytest.raises(ArtifactError, match=says):
        fetch(HUB_SOURCE, sha256, cache, hub=server.url)


def test_hub_with_another_file_is_found_out_before_the_download(
    server: Server, cache: Cache, model: bytes
) -> None:
    path = server.add_hub_file(REPO, REVISION, "tiny-q4.gguf", model)
    with pytest.raises(ArtifactError, match=r"another sha256[^$]*expected sha256 0000"):
        fetch(HUB_SOURCE, "0" * 64, cache, hub=server.url)
    assert server.gets(path) == []


def test_hub_out_of_reach_names_the_ways_out(server: Server, cache: Cache, sha256: str) -> None:
    server.server_close()
    with pytest.raises(ArtifactError) as error:
        fetch(HUB_SOURCE, sha256, cache, hub=server.url)
    for part in (server.url, "hub_endpoint", "file:///path/to/tiny-q4.gguf"):
        assert part in str(error.value)


# From this machine


def test_file_is_linked_and_not_copied(tmp_path: Path, cache: Cache, model: bytes) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(model)
    local = fetch(path.as_uri(), None, cache)
    assert local.sha256 == hashlib.sha256(model).hexdigest()
    assert local.info.file_name == "own.gguf"
    assert local.path.samefile(path)
    path.write_bytes(b"changed in place")
    assert cache.blob(local.sha256) is None


def test_file_with_a_wrong_digest(tmp_path: Path, cache: Cache, model: bytes) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(model)
    with pytest.raises(ArtifactError, match="expected sha256 0000"):
        fetch(path.as_uri(), "0" * 64, cache)
    assert path.read_bytes() == model
    assert leftovers(cache) == []


def test_file_that_is_missing(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(ArtifactError, match="there is no file"):
        fetch((tmp_path / "none.gguf").as_uri(), None, cache)


def test_file_that_is_no_model(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<html>error</html>")
    with pytest.raises(ArtifactError, match=r"cannot be served: page\.gguf is a web page"):
        fetch(path.as_uri(), None, cache)
    assert leftovers(cache) == []
