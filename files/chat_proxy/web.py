"""The page: one static document without outside resources, and the policy that keeps it so."""

import base64
import hashlib
import re
from pathlib import Path

from fastapi import FastAPI, Response


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`."""
    page = (Path(__file__).parent / "page" / "index.html").read_bytes()
    headers = {
        "Content-Security-Policy": _policy(page),
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _policy(page: bytes) -> str:
    """Allows exactly the page's own script and style, by their hashes, and talking to us."""

    def hashes(tag: bytes) -> str:
        found = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(one).digest()).decode() for one in found)
        return " ".join(f"'sha256-{one}'" for one in digests)

    return (
        f"default-src 'none'; script-src {hashes(b'script')}; style-src {hashes(b'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
