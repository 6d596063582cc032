"""What the proxy counts, kept in plain numbers: a token costs no more than a list's element."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

# Seconds. A first token is late by a prompt's length, the next by the model's size.
_WAIT_BOUNDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80, 160)
_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.35, 0.5, 1, 2, 5)


class Histogram:
    """Counts of values, by upper bounds in seconds."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Each bound with the number of values up to it; "+Inf" has them all."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


class Metrics:
    """Since the start of the process."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """By path and status, those that have ended."""
        self.rejected: Counter[str] = Counter()
        """By the problem that the client was told."""
        self.cancelled: Counter[str] = Counter()
        """Requests whose client left, by what it was waiting for."""
        self.tokens: Counter[str] = Counter()
        """Of prompts and of answers, as the engine counts them."""
        self.queue = Histogram(_WAIT_BOUNDS)
        self.first_token = Histogram(_WAIT_BOUNDS)
        self.between_tokens = Histogram(_TOKEN_BOUNDS)
