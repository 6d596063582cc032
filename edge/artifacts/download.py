"""One file over HTTP(S), or from this machine, resumed where an earlier try was cut."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
import urllib3

from edge.artifacts.cache import Cache, sha256_of
from edge.artifacts.errors import ArtifactError
from edge.artifacts.progress import Progress

_CHUNK = 1024 * 1024
_CONNECT_S = 10.0
#: No byte for so long is a stall: the connection is given up and resumed.
_STALL_S = 30.0
_TRIES = 5
_PAUSE_S = 0.5


def download(
    url: str,
    sha256: str,
    *,
    cache: Cache,
    progress: Progress,
    what: str,
    headers: Mapping[str, str] | None = None,
) -> Path:
    """The file at `url` (http, https, file) as a blob of the cache; it must have this sha256.

    What has arrived is kept when the connection is cut, and resumed by this call or a later
    one, also against a server that knows no Range. `what` names the file in messages.
    Raises ArtifactError. The caller holds the cache's lock for this blob.
    """
    part = cache.work("downloads") / f"{sha256}.part"
    while True:
        resumed = _size(part) > 0
        if urlsplit(url).scheme == "file":
            _copy(url, part, what)
        else:
            _fetch(url, part, progress, what, headers or {})
        found = sha256_of(part, progress, what)
        if found == sha256:
            return cache.adopt(part, sha256)
        text = wrong_sha256(what, url, part, sha256, found)
        part.unlink()
        if not resumed:
            raise ArtifactError(text)
        # The half that was there may have been the wrong one: once more, from the start.


def wrong_sha256(what: str, where: str, path: Path, expected: str, found: str) -> str:
    """The text for a file that is not what was asked for."""
    with path.open("rb") as stream:
        begins = stream.read(512).lstrip().lower()
    page = begins.startswith((b"<!doctype", b"<html", b"<?xml"))
    return (
        f"{what} from {where} is not what was asked for{': it is a web page' if page else ''}\n"
        f"  expected sha256 {expected}\n"
        f"  found    sha256 {found} ({path.stat().st_size} bytes)\n"
        "It is not used. Check the address and the sha256 that is asked for"
    )


def _copy(url: str, part: Path, what: str) -> None:
    source = Path(unquote(urlsplit(url).path))
    try:
        shutil.copyfile(source, part)
    except OSError as error:
        raise ArtifactError(f"{what}: {source} cannot be read: {error.strerror}") from error


def _fetch(url: str, part: Path, progress: Progress, what: str, headers: Mapping[str, str]) -> None:
    """Bring `part` to its full length, in a few tries; one that gets further is not counted."""
    left, furthest = _TRIES, _size(part)
    while True:
        try:
            _stream(url, part, progress, what, headers)
            return
        except requests.RequestException as error:
            left = _TRIES if _size(part) > furthest else left - 1
            furthest = max(furthest, _size(part))
            if left == 0:
                raise ArtifactError(
                    f"{what} cannot be fetched from {url}: {_reason(error)}. "
                    f"{_size(part)} bytes are kept; the next run goes on from there"
                ) from error
            time.sleep(_PAUSE_S)
        except OSError as error:
            raise ArtifactError(
                f"{what} cannot be written to {part}: {error.strerror}; EDGE_LLM_CACHE names "
                "another folder for the cache"
            ) from error


def _stream(
    url: str, part: Path, progress: Progress, what: str, headers: Mapping[str, str]
) -> None:
    have = _size(part)
    asked = {**headers, "Accept-Encoding": "identity"}
    if have:
        asked["Range"] = f"bytes={have}-"
    with requests.get(url, headers=asked, stream=True, timeout=(_CONNECT_S, _STALL_S)) as answer:
        if answer.status_code == 416:
            return  # as much as there is, or more, is here already: its sha256 will tell
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise requests.HTTPError(f"HTTP {answer.status_code}", response=answer)
        if not answer.ok:
            raise ArtifactError(f"{what}: {url} answers HTTP {answer.status_code} {answer.reason}")
        resumed = answer.status_code == 206
        length = answer.headers.get("Content-Length")
        doing = f"going on with {what} at {have / 1e6:.1f} MB" if resumed else f"downloading {what}"
        progress.start(doing, int(length) if length else None)
        with part.open("ab" if resumed else "wb") as stream:
            for chunk in _chunks(answer):
                stream.write(chunk)
                progress.advance(len(chunk))
        progress.done()


def _chunks(answer: requests.Response) -> Iterator[bytes]:
    """The body as it arrives. iter_content would drop what came of a chunk before a cut."""
    try:
        while chunk := answer.raw.read1(_CHUNK):
            yield chunk
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(str(error)) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _reason(error: requests.RequestException) -> str:
    """The innermost cause: "Connection refused" says more than five wrapped classes."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return str(cause) or type(cause).__name__
