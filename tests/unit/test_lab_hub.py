"""The lab's hub against the real huggingface_hub client."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.constants import DOWNLOAD_CHUNK_SIZE
from huggingface_hub.errors import (
    EntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lab.hub import Faults, LabHub, Repo

NAME = "edge-lab/Tiny-GGUF"
REVISION = "0123456789abcdef0123456789abcdef01234567"
FILE = "tiny.Q4_1.gguf"
SIZE = 300_000


@pytest.fixture
def served(tmp_path: Path) -> Path:
    file = tmp_path / FILE
    file.write_bytes(os.urandom(SIZE))
    return file


def hub_of(file: Path, faults: Faults | None = None) -> LabHub:
    return LabHub([Repo(NAME, REVISION, {FILE: file})], faults=faults)


def download(hub: LabHub, cache: Path, revision: str = REVISION, file: str = FILE) -> Path:
    return Path(
        hf_hub_download(NAME, file, revision=revision, endpoint=hub.endpoint, cache_dir=cache)
    )


def test_a_pinned_file_arrives_whole(served: Path, tmp_path: Path) -> None:
    with hub_of(served) as hub:
        got = download(hub, tmp_path / "cache")
        assert got.read_bytes() == served.read_bytes()
        assert REVISION in got.parts
        asked = len(hub.requests)
        download(hub, tmp_path / "cache")
        assert len(hub.requests) == asked  # a pinned revision in the cache asks nobody


def test_a_branch_resolves_to_its_revision(served: Path, tmp_path: Path) -> None:
    with hub_of(served) as hub:
        assert REVISION in download(hub, tmp_path / "cache", "main").parts


def test_metadata_tells_commit_size_and_digest(served: Path) -> None:
    with hub_of(served) as hub:
        metadata = get_hf_file_metadata(
            hf_hub_url(NAME, FILE, revision="main", endpoint=hub.endpoint)
        )
    digest = hashlib.sha256(served.read_bytes()).hexdigest()
    assert (metadata.commit_hash, metadata.size, metadata.etag) == (REVISION, SIZE, digest)


def test_the_repository_lists_its_files(served: Path) -> None:
    with hub_of(served) as hub:
        api = HfApi(endpoint=hub.endpoint)
        assert api.model_info(NAME).sha == REVISION
        (entry,) = api.list_repo_tree(NAME)
        assert (entry.path, entry.size) == (FILE, SIZE)


def test_what_does_not_exist_is_refused_by_its_kind(served: Path, tmp_path: Path) -> None:
    with hub_of(served) as hub:
        with pytest.raises(EntryNotFoundError):
            download(hub, tmp_path, file="tiny.Q8_0.gguf")
        with pytest.raises(RevisionNotFoundError):
            download(hub, tmp_path, revision="f" * 40)
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("edge-lab/other", FILE, endpoint=hub.endpoint, cache_dir=tmp_path)


def test_a_cut_download_is_resumed_by_range(served: Path, tmp_path: Path) -> None:
    # The client keeps whole chunks only.
    kept, size = DOWNLOAD_CHUNK_SIZE, DOWNLOAD_CHUNK_SIZE + 2 * SIZE
    served.write_bytes(os.urandom(size))
    with hub_of(served, Faults(cut_after=kept + SIZE)) as hub:
        assert download(hub, tmp_path / "cache").read_bytes() == served.read_bytes()
        gets = [request for request in hub.requests if request.method == "GET"]
    assert [request.range for request in gets] == [None, f"bytes={kept}-"]
    assert [request.sent for request in gets] == [kept + SIZE, size - kept]


def test_a_hub_without_ranges_sends_the_whole_file_again(served: Path, tmp_path: Path) -> None:
    with hub_of(served, Faults(cut_after=100_000, no_ranges=True)) as hub:
        assert download(hub, tmp_path / "cache").read_bytes() == served.read_bytes()
        assert [r.sent for r in hub.requests if r.method == "GET"] == [100_000, SIZE]


def test_wrong_bytes_come_with_the_right_length_and_digest(served: Path, tmp_path: Path) -> None:
    with hub_of(served, Faults(corrupt=True)) as hub:
        got = download(hub, tmp_path / "cache").read_bytes()
    assert len(got) == SIZE
    assert [i for i, (a, b) in enumerate(zip(got, served.read_bytes(), strict=True)) if a != b] == [
        0
    ]


def test_a_slow_hub_has_not_sent_all_when_the_first_bytes_arrive(served: Path) -> None:
    with hub_of(served, Faults(bytes_per_s=100_000)) as hub:
        url = hf_hub_url(NAME, FILE, revision=REVISION, endpoint=hub.endpoint)
        with httpx.stream("GET", url) as response:
            next(response.iter_raw())
            assert hub.requests[-1].sent < SIZE


@pytest.mark.parametrize(
    ("asked", "status", "first", "last"),
    [
        ("bytes=10-19", 206, 10, 19),
        ("bytes=299990-", 206, 299_990, SIZE - 1),
        ("bytes=0-", 206, 0, SIZE - 1),
    ],
)
def test_ranges(served: Path, asked: str, status: int, first: int, last: int) -> None:
    with hub_of(served) as hub:
        url = hf_hub_url(NAME, FILE, revision=REVISION, endpoint=hub.endpoint)
        answer = httpx.get(url, headers={"Range": asked})
    assert answer.status_code == status
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer.content == served.read_bytes()[first : last + 1]


def test_a_range_beyond_the_end_is_refused(served: Path) -> None:
    with hub_of(served) as hub:
        url = hf_hub_url(NAME, FILE, revision=REVISION, endpoint=hub.endpoint)
        assert httpx.get(url, headers={"Range": f"bytes={SIZE}-"}).status_code == 416
