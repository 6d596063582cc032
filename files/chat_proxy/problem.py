"""What can go wrong with a request, as the client will read it."""

import json
from dataclasses import dataclass


@dataclass
class Problem(Exception):  # noqa: N818  (it is not always an error of ours)
    """Ends a request with `status` and one line that says why.

    `kind` is a word for programs; `retry_after_s` becomes a Retry-After header.
    """

    status: int
    kind: str
    message: str
    retry_after_s: int | None = None

    def body(self) -> bytes:
        """JSON in the shape that OpenAI's clients and llama-server use."""
        error: dict[str, object] = {
            "code": self.status,
            "type": self.kind,
            "message": self.message,
        }
        if self.retry_after_s is not None:
            error["retry_after"] = self.retry_after_s
        return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer, Retry-After and WWW-Authenticate included."""
        found = [(b"content-type", b"application/json; charset=utf-8")]
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def bad_request(message: str, status: int = 400) -> Problem:
    """The request itself is wrong."""
    return Problem(status, "invalid_request_error", message)
