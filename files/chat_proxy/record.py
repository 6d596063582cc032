"""What is known of one request, for the journal and for the metrics.

One line a request on stdout, which is the journal. No prompt, no answer, no key.
"""

import sys
import time
from dataclasses import dataclass, field

from .metrics import Metrics
from .pulse import Pulse


@dataclass
class Record:
    """What is known of one request; times are monotonic seconds, counts are tokens."""

    path: str
    metrics: Metrics
    pulse: Pulse
    caller: str | None = None
    """Name of the client's key."""
    address: str = ""
    """Where it comes from; written down only if it was not let in."""
    started: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    finish: str | None = None
    model: str | None = None
    """As the engine names it in its answer: a new model is no reason to restart the proxy."""
    status: int = 0
    problem: str | None = None
    """What the client was told went wrong."""
    left_in: str | None = None
    """The phase that the client left in."""

    def saw_place(self) -> None:
        """The request has a slot."""
        self.admitted = time.monotonic()
        self.metrics.queue.observe(self.admitted - self.started)

    def saw_text(self) -> None:
        """A piece of the answer has come from the engine."""
        now = time.monotonic()
        if self.last_token is None:
            self.first_token = now
            self.metrics.first_token.observe(now - self.started)
        else:
            self.metrics.between_tokens.observe(now - self.last_token)
        self.last_token = now
        self.pulse.beat(now)

    def timings(self) -> dict[str, float | None]:
        """Seconds since the request arrived, and the speed of the answer after its first token."""
        speed = None
        if self.first_token and self.last_token and self.tokens_out and self.tokens_out > 1:
            spent = self.last_token - self.first_token
            speed = round((self.tokens_out - 1) / spent, 2) if spent > 0 else None
        return {
            "queue_s": self._since(self.admitted),
            "first_token_s": self._since(self.first_token),
            "total_s": self._since(time.monotonic()),
            "tokens_per_s": speed,
        }

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else round(moment - self.started, 4)

    def close(self) -> None:
        """Count the request, and put its line out."""
        metrics = self.metrics
        metrics.requests[self.path, self.status] += 1
        metrics.tokens["prompt"] += self.tokens_in or 0
        metrics.tokens["completion"] += self.tokens_out or 0
        if self.left_in is not None:
            metrics.cancelled[self.left_in] += 1
        if self.problem is not None:
            metrics.rejected[self.problem] += 1
        values = {
            "path": self.path,
            "caller": self.caller,
            "from": self.address if self.status in (401, 403) else None,
            "status": self.status,
            "finish": self.finish,
            "model": "_".join(self.model.split()) if self.model else None,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            **self.timings(),
        }
        line = " ".join(f"{k}={'-' if v is None else v}" for k, v in values.items())
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
