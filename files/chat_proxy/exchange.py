"""One request from its first byte to its last: the client, its time limits, and its leaving."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .config import Settings
from .connection import Stall, transport_of
from .memory import Share
from .problem import Problem
from .record import Record

logger = logging.getLogger("chat_proxy")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx and its like: do not collect the stream
]
CLIENT_LEFT = 499  # in the log only
_BODY_S = 30.0
_UNWATCHED_BYTES = 16 << 10
_LAST_WORD_S = 2.0  # for telling a client that does not read why its answer ended


class Client:
    """The asking side. The answer starts late, so that an early failure keeps its own status."""

    def __init__(
        self,
        send: Send,
        record: Record,
        transport: asyncio.Transport | None,
        write_timeout_s: float,
    ) -> None:
        self._send_freely = send
        self._record = record
        self._transport = transport
        self._write_timeout_s = write_timeout_s
        self.stalled = False  # it took nothing for so long that it was cut off
        self._starting = asyncio.Lock()  # a heartbeat and the first token may come together
        self.started = False
        self.complete = False
        self.events = False  # the answer is an event stream of ours, or ends like one
        self.mid_event = False  # what was written last ends inside an event

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers; nothing if that has been done."""
        async with self._starting:
            if self.started:
                return
            self._record.status = status
            self.events = any(v.startswith(b"text/event-stream") for _, v in headers)
            own = list(headers)  # a middleware may add to it
            await self._send({"type": "http.response.start", "status": status, "headers": own})
            self.started = True

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.complete = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def fail(self, problem: Problem) -> None:
        """Say what went wrong in the way that is still open: a status, or an error event."""
        if self.complete:
            return
        if not self.started:
            body = problem.body()
            length = (b"content-length", str(len(body)).encode())
            await self.start(problem.status, [*problem.headers(), length])
            await self.end(body)
        elif self.events:
            self._record.status = problem.status
            cut = b"\n\n" if self.mid_event else b""
            await self.end(cut + b"event: error\ndata: " + problem.body() + b"\n\n")
        # else: a plain body was cut short; returning unfinished closes the connection

    async def _send(self, message: Message) -> None:
        """Hand over to the server, which waits here while the client does not read."""
        transport = self._transport
        # Far below the bound above which the server waits for the client: nothing to watch over.
        if transport is None or _unsent(transport, message) < _UNWATCHED_BYTES:
            await self._send_freely(message)
            return
        stall = Stall(transport, self._write_timeout_s, self.cut_off)
        try:
            await self._send_freely(message)
        finally:
            stall.cancel()

    def cut_off(self) -> None:
        """Drop the connection and what waits in it: closing would wait for the client to read."""
        self.stalled = True
        if self._transport is not None:
            self._transport.abort()


class Exchange(Response):
    """Runs `work` for one request and ends it when the client leaves or its time is up.

    The work moves from phase to phase with `enter`: "body" (it comes in), "queue", "engine" (it
    is away), "prompt" (the engine reads it), "answer".
    """

    def __init__(
        self,
        settings: Settings,
        record: Record,
        read_body: "Callable[[Exchange], Awaitable[bytes]]",
        work: "Callable[[Exchange], Awaitable[None]]",
        open_exchanges: "set[Exchange]",
        held: Share,
    ) -> None:
        self.settings = settings
        self.record = record
        self.held = held  # of the body
        self.client: Client
        self.client_name = ""  # as the queue tells clients apart
        self.position: Callable[[], int] = lambda: 0
        self.retry_after_s: Callable[[], int] = lambda: 1
        self.heartbeat = False  # comments may be sent while waiting
        self.background = None
        self.phase = ""
        self._entered = 0.0
        self._read_body = read_body
        self._work = work
        self._open = open_exchanges
        self._body_read = asyncio.Event()
        self._task: asyncio.Future[None]
        self._timer: asyncio.TimerHandle | None = None
        self._ended_by: Problem | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.client = Client(send, self.record, transport_of(scope), self.settings.write_timeout_s)
        self._task = asyncio.ensure_future(self._run())
        gone = asyncio.ensure_future(_left(receive, self._body_read))
        self._open.add(self)
        try:
            await self._watch(gone)
        finally:
            self._open.discard(self)
            self._limit(None)
            gone.cancel()
            self._task.cancel()
            await asyncio.wait({self._task, gone})
            self.held.resize(0)
            await self._finish()
            self.record.close()

    async def _run(self) -> None:
        self.enter("body")
        await self._work(self)

    async def take_body(self) -> bytes:
        """Read the request's body: once, and kept by nobody but the caller."""
        body = await self._read_body(self)
        self._body_read.set()
        return body

    async def _watch(self, gone: "asyncio.Future[None]") -> None:
        """Wait for the work's end or the client's leaving; keep the line warm meanwhile."""
        while not self._task.done():
            # The server also reports a disconnect when an answer is complete.
            watched = {self._task} if self.client.complete else {self._task, gone}
            beat = self.settings.heartbeat_s if self._waiting else None
            done, _ = await asyncio.wait(watched, timeout=beat, return_when=asyncio.FIRST_COMPLETED)
            if done & {gone} and not self.client.complete:
                return
            if not done and self.heartbeat and self._waiting:
                await self._beat()

    @property
    def _waiting(self) -> bool:
        return self.phase != "answer"

    async def _beat(self) -> None:
        await self.client.start(200, STREAM_HEADERS)
        place = f" {self.position()}" if self.phase == "queue" else ""
        if self._waiting:
            await self.client.write(f": {self.phase}{place}\n\n".encode())

    async def _finish(self) -> None:
        """Tell the client, if it is there, how the work ended."""
        problem = self._ended_by
        if self.client.stalled:
            self._note_leaving("client-stalled")
            return
        if not self._task.cancelled():
            error = self._task.exception()
            if error is None:
                return
            if isinstance(error, Problem):
                problem = error
            elif problem is None and not isinstance(error, ClientDisconnect):
                logger.error("request to %s failed", self.record.path, exc_info=error)
                problem = Problem(500, "internal_error", "the proxy failed; see its journal")
        if problem is None:
            self._note_leaving("client-left")
            return
        self.record.finish = self.record.problem = problem.kind
        self.record.status = problem.status
        try:
            await asyncio.wait_for(self.client.fail(problem), _LAST_WORD_S)
        except asyncio.TimeoutError:
            self.client.cut_off()
            await asyncio.sleep(0)  # or the server thinks that the answer was forgotten

    def _note_leaving(self, how: str) -> None:
        self.record.status = CLIENT_LEFT
        self.record.finish = how
        self.record.left_in = self.phase

    def enter(self, phase: str) -> None:
        """Begin a phase; its time limit replaces the one before."""
        self.phase = phase
        self._entered = time.monotonic()
        limits = self.settings
        if phase == "body":
            self._limit(_BODY_S)
        elif phase == "queue":
            self._limit(limits.queue_wait_s)
        elif phase == "engine":  # the engine's own bound holds
            self._limit(None)
        elif phase == "prompt":
            self._limit(limits.first_token_timeout_s)
        else:
            since = self.record.admitted or self.record.started
            self._limit(max(0.0, since + limits.total_timeout_s - self._entered))

    def _limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self.phase == "body":
            late = Problem(408, "body_timeout", f"the body took longer than {_BODY_S:g} s to come")
        elif self.phase == "queue":
            wait = self.retry_after_s()
            message = f"no slot came free in time: try again in {wait} s"
            late = Problem(503, "queue_timeout", message, wait)
        elif self.phase == "prompt":
            self.record.pulse.missed(self._entered)
            late = Problem(504, "first_token_timeout", "the engine gave no first token in time")
        else:
            message = "the answer took longer than this server allows"
            late = Problem(504, "total_timeout", message)
        self.abort(late)

    def abort(self, problem: Problem) -> None:
        """End the work now; the client is told `problem`."""
        self._ended_by = problem
        self._task.cancel()


def _unsent(transport: asyncio.Transport, message: Message) -> int:
    return transport.get_write_buffer_size() + len(message.get("body", b""))


async def _left(receive: Receive, body_read: asyncio.Event) -> None:
    """Return when the client has gone; until the body is read, its reader notices that."""
    await body_read.wait()
    while (await receive())["type"] != "http.disconnect":
        pass
