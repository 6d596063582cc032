"""A web server for the artifact tests: it cuts, refuses ranges, answers with error pages.

It also speaks the small part of a model hub's protocol that the real client asks for.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """How one path answers.

    `cuts`: after how many bytes each of the next answers breaks off. `held`: no GET is answered
    before this is set.
    """

    body: bytes
    status: int = 200
    ranges: bool = True
    content_type: str = "application/octet-stream"
    cuts: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    held: threading.Event | None = None


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: dict[str, Reply] = {}
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.tokens: list[str | None] = []
        self.arrived = threading.Event()  # of the first GET
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def gets(self, path: str) -> list[str | None]:
        """The Range header of each GET of `path`."""
        return [asked[2] for asked in self.asked if asked[:2] == ("GET", path)]

    def add_hub_file(self, repo: str, revision: str, name: str, body: bytes) -> str:
        """Publish `body` as a hub does; gives its path."""
        path = f"/{repo}/resolve/{revision}/{name}"
        digest = hashlib.sha256(body).hexdigest()
        headers = {
            "X-Repo-Commit": revision,
            "ETag": f'"{digest}"',
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(body)),
        }
        self.replies[path] = Reply(body, headers=headers)
        api = f"/api/models/{repo}/tree/{revision}"
        known = json.loads(self.replies[api].body) if api in self.replies else []
        entry = {"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
        listing = json.dumps([*known, entry]).encode()
        self.replies[api] = Reply(listing, content_type="application/json")
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path, wanted = self.path.partition("?")[0], self.headers.get("Range")
        self.server.asked.append((self.command, path, wanted))
        self.server.tokens.append(self.headers.get("Authorization"))
        missing = Reply(b"no such file", 404, headers={"X-Error-Code": "EntryNotFound"})
        reply = self.server.replies.get(path, missing)
        body, status = reply.body, reply.status
        self.close_connection = True
        if wanted and reply.ranges and status == 200:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            status, body = (206, body[start:]) if start < len(body) else (416, b"")
        self.send_response(status)
        if status in (206, 416):
            span = f"{start}-{len(reply.body) - 1}" if status == 206 else "*"
            self.send_header("Content-Range", f"bytes {span}/{len(reply.body)}")
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.server.arrived.set()
            if reply.held is not None:
                reply.held.wait(timeout=30)
            self.wfile.write(body[: reply.cuts.pop(0)] if reply.cuts else body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running_server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
