"""What all requests share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .access import Access
from .admission import Admission
from .config import MAX_HELD_BYTES, Settings
from .engine import Engine
from .exchange import Exchange
from .memory import Held
from .metrics import Metrics
from .problem import Problem
from .pulse import Pulse

_ASIDES = 4  # requests to the engine at one time that take no slot


class Service:
    """Settings, engine, admission, and the exchanges that are open now."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.access = Access(settings)
        self.pulse = Pulse()
        self.engine = Engine(settings, self.pulse)
        self.admission = Admission(settings.slots, settings.queue_limit, settings.queue_wait_s)
        self.held = Held(MAX_HELD_BYTES, self.admission.retry_after_s)
        self.metrics = Metrics()
        # Each connection to the engine takes one of its threads, whose number its unit bounds.
        self.asides = asyncio.Semaphore(_ASIDES)
        self.open: set[Exchange] = set()

    @asynccontextmanager
    async def place(self, x: Exchange) -> AsyncIterator[None]:
        """Hold one of the slots for `x`.

        Raises:
            Problem: 429, the queue is full, or too long to wait for.
        """
        ticket = self.admission.ticket(x.client_name)
        x.position = lambda: ticket.position
        x.retry_after_s = self.admission.retry_after_s
        x.enter("queue")
        async with ticket:
            x.record.saw_place()
            yield

    def streams(self) -> int:
        """Event streams whose answer is on its way."""
        return sum(x.phase == "answer" and x.client.events for x in self.open)

    def abort_all(self) -> None:
        """End what is still open; each client is told why."""
        for exchange in list(self.open):
            exchange.abort(Problem(503, "stopping", "the server is restarting: try again", 2))
