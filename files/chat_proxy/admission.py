"""Who may generate: as many as the engine has slots, the others wait in a bounded queue."""

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

from .problem import Problem

_FIRST_GUESS_S = 10.0  # of one answer, until the first has been seen
_WEIGHT = 0.2  # of the newest answer in the running mean


class Admission:
    """`slots` places; `queue_limit` requests wait for one, first come, first served."""

    def __init__(self, slots: int, queue_limit: int) -> None:
        self._slots = slots
        self._free = slots
        self._queue_limit = queue_limit
        self._queue: deque[Ticket] = deque()
        self._mean_s = _FIRST_GUESS_S

    @property
    def active(self) -> int:
        """Places taken."""
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def retry_after_s(self) -> int:
        """When the queue as it stands will have been served, judged by the answers seen so far."""
        return min(600, max(1, math.ceil((self.waiting + 1) * self._mean_s / self._slots)))

    def ticket(self) -> "Ticket":
        """A right to one place: `async with` it to wait for the place and hold it.

        Raises:
            Problem: 429, the queue is full.
        """
        if not self._free and self.waiting >= self._queue_limit:
            wait = self.retry_after_s()
            raise Problem(
                429,
                "busy",
                f"all {self._slots} slots are taken and {self.waiting} requests wait: "
                f"try again in {wait} s",
                wait,
            )
        return Ticket(self)


class Ticket:
    """One request's place. It must be entered at once, before anything else is awaited."""

    def __init__(self, admission: Admission) -> None:
        self._home = admission
        self._turn: asyncio.Future[None] | None = None
        self._since = 0.0

    @property
    def position(self) -> int:
        """1 for the next to be served; 0 when not in the queue."""
        queue = self._home._queue
        return queue.index(self) + 1 if self in queue else 0

    async def __aenter__(self) -> None:
        home = self._home
        if home._free:  # then the queue is empty: a place that comes free goes to it first
            home._free -= 1
        else:
            self._turn = asyncio.get_running_loop().create_future()
            home._queue.append(self)
            try:
                await self._turn
            except asyncio.CancelledError:
                with suppress(ValueError):
                    home._queue.remove(self)
                if not self._turn.cancelled():  # the place was handed over in the same moment
                    self._give()
                raise
        self._since = time.monotonic()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        home = self._home
        home._mean_s += _WEIGHT * (time.monotonic() - self._since - home._mean_s)
        self._give()

    def _give(self) -> None:
        """Hand the place to the first in the queue that is still there."""
        home = self._home
        while home._queue:
            turn = home._queue.popleft()._turn
            if turn is not None and not turn.done():
                turn.set_result(None)
                return
        home._free += 1
