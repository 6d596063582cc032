"""Whether the engine still generates, as its answers tell: its /health is another thread's word."""


class Pulse:
    """Shared by all requests; times are monotonic seconds."""

    def __init__(self) -> None:
        self.silent = False
        """A request waited for its first token in vain, and nobody else had one meanwhile."""
        self._beat = 0.0

    def beat(self, now: float) -> None:
        """A token came."""
        self._beat = now
        self.silent = False

    def missed(self, since: float) -> None:
        """No token came to a request that waited since then."""
        self.silent = self.silent or self._beat < since

    def restarted(self) -> None:
        """Another engine begins."""
        self.silent = False
