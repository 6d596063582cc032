"""The page: a few plain files, served from memory, and the policy that keeps them to themselves."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is served; notes and licences that lie beside it are not."""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No script may turn a string into markup or code: an answer becomes elements one by one.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-cache",  # kept, but asked for anew: a new release shows at once
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _read(folder: Path) -> dict[str, _File]:
    """Every file of the page by its path under `folder`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if media_type := _TYPES.get(path.suffix):
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = _File(content, media_type, etag)
    return found


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files under `/page/`; they need no key."""
    files = _read(Path(__file__).parent / "page")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index(request: Request) -> Response:
        return _answer(request, files["index.html"])

    @app.api_route("/page/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def part(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "the page has no such file")
        return _answer(request, files[name])


def _answer(request: Request, file: _File) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
