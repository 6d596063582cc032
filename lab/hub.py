"""A small model hub: the part of the Hugging Face hub's wire protocol that downloads use.

`python -m lab.hub NAME PORT REPO REVISION FILE` serves a lab's model; LabHub serves any files, and
in tests it can be slow, cut connections, or send wrong bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_CHUNK = 64 * 1024
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Repo:
    """One revision of a model repository. revision: 40 hex digits. files: name in it to path."""

    name: str
    revision: str
    files: Mapping[str, Path]
    branch: str = "main"


@dataclass(frozen=True)
class Faults:
    """How this hub misbehaves.

    bytes_per_s: at most this fast, for each download. cut_after: close the connection after so many
    bytes of each answer's body, cut_times times. corrupt: flip the bits of every file's first byte.
    no_ranges: answer a Range request with the whole file, as plain web servers may.
    """

    bytes_per_s: int | None = None
    cut_after: int | None = None
    cut_times: int = 1
    corrupt: bool = False
    no_ranges: bool = False


@dataclass
class Request:
    """One request as the hub saw it; sent counts the bytes of the body that went out."""

    method: str
    path: str
    range: str | None
    sent: int = 0


@dataclass
class _State:
    """What the handlers share."""

    repos: Mapping[str, Repo]
    faults: Faults
    cuts_left: int
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    digests: dict[Path, str] = field(default_factory=dict)

    def sha256(self, path: Path) -> str:
        with self.lock:
            if path not in self.digests:
                with path.open("rb") as file:
                    self.digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
            return self.digests[path]

    def may_cut(self) -> bool:
        with self.lock:
            self.cuts_left -= 1
            return self.cuts_left >= 0


class LabHub:
    """The hub as a context manager: `with LabHub([repo]) as hub: … hub.endpoint …`."""

    def __init__(
        self,
        repos: list[Repo],
        *,
        faults: Faults | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        faults = faults or Faults()
        state = _State({repo.name: repo for repo in repos}, faults, faults.cut_times)
        handler = type("Handler", (_Handler,), {"state": state})
        self._server = ThreadingHTTPServer((address, port), handler)
        self._state = state

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT must be to use this hub."""
        address, port = self._server.server_address[:2]
        return f"http://{address!s}:{port}"

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in the order of their arrival."""
        return list(self._state.requests)

    def serve_forever(self) -> None:
        """Serve in this thread."""
        self._server.serve_forever(poll_interval=0.1)

    def __enter__(self) -> LabHub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _RefusedError(Exception):
    """An error answer of the hub: its status, and the code that the client turns into a type."""

    def __init__(self, code: str, message: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: _State

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        request = Request(self.command, self.path, self.headers.get("Range"))
        self.state.requests.append(request)
        path = unquote(urlsplit(self.path).path)
        try:
            if path.startswith("/api/models/"):
                self._send_json(
                    self._describe(path.removeprefix("/api/models/")), with_body=with_body
                )
            else:
                repo, file = self._resolve(path)
                self._send_file(repo, file, request, with_body=with_body)
        except _RefusedError as refusal:
            self._refuse(refusal, with_body=with_body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client left in the middle; that is its right

    def _repo(self, name: str, revision: str | None) -> Repo:
        repo = self.state.repos.get(name)
        if repo is None:
            raise _RefusedError("RepoNotFound", "Repository not found")
        if revision not in (None, repo.revision, repo.branch):
            raise _RefusedError("RevisionNotFound", f"Invalid rev id: {revision}")
        return repo

    def _resolve(self, path: str) -> tuple[Repo, Path]:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if match is None:
            raise _RefusedError("RepoNotFound", "Repository not found")
        repo = self._repo(match[1], match[2])
        if match[3] not in repo.files:
            raise _RefusedError("EntryNotFound", "Entry not found")
        return repo, repo.files[match[3]]

    def _describe(self, path: str) -> object:
        match = re.fullmatch(r"([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        if match is None:
            raise _RefusedError("RepoNotFound", "Repository not found")
        repo = self._repo(match[1], match[3])
        if match[2] == "tree":
            return [
                {
                    "type": "file",
                    "path": name,
                    "size": file.stat().st_size,
                    "oid": self.state.sha256(file)[:40],
                    "lfs": {
                        "oid": self.state.sha256(file),
                        "size": file.stat().st_size,
                        "pointerSize": 134,
                    },
                }
                for name, file in repo.files.items()
            ]
        siblings = [{"rfilename": name} for name in repo.files]
        return {"id": repo.name, "modelId": repo.name, "sha": repo.revision, "siblings": siblings}

    def _send_json(self, value: object, *, with_body: bool) -> None:
        body = json.dumps(value).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _refuse(self, refusal: _RefusedError, *, with_body: bool) -> None:
        body = refusal.message.encode()
        self.send_response(refusal.status)
        self.send_header("X-Error-Code", refusal.code)
        self.send_header("X-Error-Message", refusal.message)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _send_file(self, repo: Repo, file: Path, request: Request, *, with_body: bool) -> None:
        size, digest = file.stat().st_size, self.state.sha256(file)
        first, last = self._range(request.range, size)
        partial = (first, last) != (0, size - 1) or (
            request.range and not self.state.faults.no_ranges
        )
        self.send_response(HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK)
        self.send_header("X-Repo-Commit", repo.revision)
        self.send_header("X-Linked-Size", str(size))
        self.send_header("X-Linked-Etag", f'"{digest}"')
        self.send_header("ETag", f'"{digest}"')
        self.send_header("Accept-Ranges", "none" if self.state.faults.no_ranges else "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(last - first + 1))
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if with_body:
            self._send_body(file, first, last, request)

    def _range(self, asked: str | None, size: int) -> tuple[int, int]:
        """First and last byte to send."""
        match = _RANGE.fullmatch(asked or "")
        if match is None or self.state.faults.no_ranges:
            return 0, size - 1
        first = int(match[1])
        if first >= size:
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            raise _RefusedError("RangeNotSatisfiable", f"the file has {size} bytes", status)
        return first, min(int(match[2] or size - 1), size - 1)

    def _send_body(self, file: Path, first: int, last: int, request: Request) -> None:
        faults = self.state.faults
        cut = faults.cut_after if faults.cut_after is not None and self.state.may_cut() else None
        start = time.monotonic()
        for chunk in _chunks(file, first, last, corrupt=faults.corrupt):
            piece = chunk if cut is None else chunk[: cut - request.sent]
            self.wfile.write(piece)
            request.sent += len(piece)
            if request.sent == cut:
                self.close_connection = True
                return
            if faults.bytes_per_s:
                due = start + request.sent / faults.bytes_per_s
                time.sleep(max(0.0, due - time.monotonic()))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """No line a request: the list of requests tells."""


def _chunks(file: Path, first: int, last: int, *, corrupt: bool) -> Iterator[bytes]:
    position = first
    with file.open("rb") as source:
        source.seek(first)
        while position <= last:
            chunk = source.read(min(_CHUNK, last + 1 - position))
            if corrupt and position == 0:
                chunk = bytes([chunk[0] ^ 0xFF]) + chunk[1:]
            position += len(chunk)
            yield chunk


def main(port: int, repo: str, revision: str, path: Path) -> None:
    """Serve one model until killed."""
    LabHub([Repo(repo, revision, {path.name: path})], port=port).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
