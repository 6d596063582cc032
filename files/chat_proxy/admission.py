"""Who may generate: as many as the engine has slots, the others wait in a bounded, fair queue."""

import asyncio
import math
import time
from bisect import insort
from collections import Counter
from types import TracebackType

from .problem import Problem

_FIRST_GUESS_S = 10.0  # of one answer, until the first has been seen
_WEIGHT = 0.2  # of the newest answer in the running mean


class Admission:
    """`slots` places; `queue_limit` requests wait for one.

    Clients take turns: of those that wait, each is served once before any is served twice (rounds
    as in start-time fair queueing). A full queue makes room for a newcomer by refusing the newest
    request of the client that has the most in it, if that leaves it with no fewer than the
    newcomer. Nobody is let in who would wait for longer than `patience_s` in vain.
    """

    def __init__(self, slots: int, queue_limit: int, patience_s: float = math.inf) -> None:
        self._slots = slots
        self._patience_s = patience_s
        self._free = slots
        self._queue_limit = queue_limit
        self._queue: list[Ticket] = []  # in the order of service
        self._waiting: Counter[str] = Counter()  # requests in the queue, by client
        self._round = 0  # of the request that was served last
        self._count = 0
        self._mean_s = _FIRST_GUESS_S
        self._served = False  # then the mean is more than a guess

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
        return min(600, max(1, math.ceil(self._wait_s(self.waiting + 1))))

    def _wait_s(self, position: int) -> float:
        return position * self._mean_s / self._slots

    def ticket(self, client: str) -> "Ticket":
        """A right to one place for `client`: `async with` it to wait for the place and hold it.

        Raises:
            Problem: 429, the queue is full.
        """
        if not self._free and self.waiting >= self._queue_limit:
            self._make_room(client)
        return Ticket(self, client)

    def _make_room(self, client: str) -> None:
        greediest, most = max(self._waiting.items(), key=lambda item: item[1], default=("", 0))
        if self._waiting[client] + 1 >= most:
            raise self._busy()
        newest = max((one for one in self._queue if one.client == greediest), key=_order)
        newest.refuse(self._busy())

    def _busy(self) -> Problem:
        wait = self.retry_after_s()
        return Problem(
            429,
            "busy",
            f"all {self._slots} slots are taken and {self.waiting} requests wait: "
            f"try again in {wait} s",
            wait,
        )

    def _join(self, ticket: "Ticket") -> None:
        """Put a ticket in its place: one round after its client's last."""
        rounds = (one.order[0] for one in self._queue if one.client == ticket.client)
        self._count += 1
        ticket.order = (max(rounds, default=self._round) + 1, self._count)
        self._waiting[ticket.client] += 1
        insort(self._queue, ticket, key=_order)

    def _is_hopeless(self, ticket: "Ticket") -> bool:
        """Whether its wait would end by the time limit, as far as answers seen so far tell.

        Whoever is among the next to be served may wait: what runs now may end soon.
        """
        position = ticket.position
        return self._served and position > self._slots and self._wait_s(position) > self._patience_s

    def _leave(self, ticket: "Ticket") -> None:
        """Take a ticket out; its client's later ones move up a round."""
        self._drop(ticket)
        for one in self._queue:
            if one.client == ticket.client and one.order > ticket.order:
                one.order = (one.order[0] - 1, one.order[1])
        self._queue.sort(key=_order)

    def _drop(self, ticket: "Ticket") -> None:
        self._queue.remove(ticket)
        self._waiting[ticket.client] -= 1
        if not self._waiting[ticket.client]:
            del self._waiting[ticket.client]

    def _give(self) -> None:
        """Hand a place that came free to the first in the queue that is still there."""
        while self._queue:
            first = self._queue[0]
            self._drop(first)
            if first.turn is not None and not first.turn.done():
                self._round = first.order[0]
                first.turn.set_result(None)
                return
        self._free += 1


class Ticket:
    """One request's place. It must be entered at once, before anything else is awaited."""

    def __init__(self, admission: Admission, client: str) -> None:
        self._home = admission
        self.client = client
        self.order = (0, 0)  # round, number of arrival
        self.turn: asyncio.Future[None] | None = None
        self._since = 0.0

    @property
    def position(self) -> int:
        """1 for the next to be served; 0 when not in the queue."""
        queue = self._home._queue
        return queue.index(self) + 1 if self in queue else 0

    def refuse(self, problem: Problem) -> None:
        """End the wait with `problem`."""
        self._home._leave(self)
        if self.turn is not None and not self.turn.done():
            self.turn.set_exception(problem)

    async def __aenter__(self) -> None:
        home = self._home
        if home._free:  # then the queue is empty: a place that comes free goes to it first
            home._free -= 1
        else:
            self.turn = asyncio.get_running_loop().create_future()
            home._join(self)
            if home._is_hopeless(self):
                home._leave(self)
                raise home._busy()
            try:
                await self.turn
            except asyncio.CancelledError:
                if self in home._queue:
                    home._leave(self)
                # the place was handed over, or refused, in the same moment
                elif not self.turn.cancelled() and self.turn.exception() is None:
                    home._give()
                raise
        self._since = time.monotonic()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        home = self._home
        home._served = True
        home._mean_s += _WEIGHT * (time.monotonic() - self._since - home._mean_s)
        home._give()


def _order(ticket: Ticket) -> tuple[int, int]:
    return ticket.order
