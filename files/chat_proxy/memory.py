"""How much of clients' bodies is in memory: a queue of large ones must not fill it."""

from collections.abc import Callable

from .problem import Problem


class Held:
    """Bytes of bodies that all requests hold now, `limit` at most."""

    def __init__(self, limit: int, retry_after_s: Callable[[], int]) -> None:
        self._free = limit
        self._retry_after_s = retry_after_s

    def share(self) -> "Share":
        """One request's part, empty at first."""
        return Share(self)


class Share:
    """What one request holds."""

    def __init__(self, home: Held) -> None:
        self._home = home
        self._size = 0

    def resize(self, size: int) -> None:
        """From now on this request holds `size` bytes.

        Raises:
            Problem: 503, there is no room for them; the size is as it was.
        """
        home = self._home
        more = size - self._size
        if more > home._free and more > 0:
            wait = home._retry_after_s()
            message = f"the requests that wait fill the server's memory: try again in {wait} s"
            raise Problem(503, "busy", message, wait)
        home._free -= more
        self._size = size
