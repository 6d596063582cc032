"""The engine as the proxy sees it: one connection a request, patience while it is away."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from .config import Settings
from .problem import Problem
from .pulse import Pulse
from .wire import Broken, Call, call

_POLL_S = 0.2  # between looks at /health while the engine is away
_HEALTH_TIMEOUT_S = 2.0
_RETRY_AFTER_S = 5
MAX_PLAIN_BODY = 16 << 20
_AWAY = {
    401: "the engine has another key than the proxy",  # one of them is about to be restarted
    503: "the engine is loading its model",
}
"""Answers that are no fault of the client, and pass."""


@dataclass(frozen=True)
class Reply:
    """The engine's answer: status, type, the first bytes of the body ("" if none), the rest."""

    status: int
    content_type: str
    first: bytes
    _call: Call

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events."""
        return self.content_type.startswith("text/event-stream")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, the first bytes included.

        Raises:
            Problem: 502, the engine went away in the middle.
        """
        yield self.first
        try:
            while chunk := await self._call.read():
                yield chunk
        except OSError as err:
            raise _died() from err

    async def whole(self) -> bytes:
        """The whole body.

        Raises:
            Problem: 502, the engine went away in the middle, or the body has no end.
        """
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > MAX_PLAIN_BODY:
                raise Problem(502, "engine_error", "the engine's answer is too large")
        return bytes(body)


def _died() -> Problem:
    return Problem(502, "engine_died", "the engine stopped in the middle of the answer")


class Engine:
    """Client of one llama-server."""

    def __init__(self, settings: Settings, pulse: Pulse) -> None:
        self._settings = settings
        self._pulse = pulse
        key = settings.engine_key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        parts = urlsplit(settings.engine_url)
        assert parts.hostname is not None  # the settings see to it
        self._address = (parts.hostname, parts.port or 80)
        self._back: asyncio.Future[None] | None = None  # while the engine is away
        self._down_since = 0.0
        self._reason = ""
        self._watcher: asyncio.Task[None] | None = None
        self._look: asyncio.Future[str | None] | None = None

    def close(self) -> None:
        """Look out for the engine no more."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def not_ready(self) -> str | None:
        """None when the engine can generate, else the reason why it cannot.

        All who ask at one time share one look: each takes a thread of the engine.
        """
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._look_once())
        return await asyncio.shield(self._look)

    async def _look_once(self) -> str | None:
        try:
            status = await asyncio.wait_for(self._health(), _HEALTH_TIMEOUT_S)
        except asyncio.TimeoutError:  # another class in Python 3.10
            return f"the engine did not answer within {_HEALTH_TIMEOUT_S:g} s"
        except OSError:
            return "the engine does not accept connections"
        if status == 503:
            return _AWAY[503]
        if status != 200:
            return f"the engine's /health says {status}"
        return "the engine takes requests, but generates nothing" if self._pulse.silent else None

    async def _health(self) -> int:
        asked = await call(*self._address, "GET", "/health", {})
        try:
            await asked.head()
        finally:
            asked.close()
        return asked.status

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        *,
        arrived: float,
        enter: Callable[[str], None],
        phase: str = "prompt",
        body: bytes = b"",
    ) -> AsyncIterator[Reply]:
        """Send a request, whose body is JSON; give its reply once the first bytes of it are there.

        While the engine is away this waits, until `engine_wait_s` after the later of `arrived`
        (monotonic) and the moment when it went. A request that the engine dropped before its
        first byte is sent once more: nothing has been told to the client. Leaving the block
        closes the connection, which makes the engine stop.

        `enter` is called with `phase` when the engine has the request, with "engine" when away.

        Raises:
            Problem: 503 the engine did not come back in time; 502 it died twice on this request.
        """
        headers = {"Content-Type": "application/json", **self._headers} if body else self._headers
        deadline: float | None = None
        dropped = False
        while True:
            enter(phase)
            asked: Call | None = None
            try:
                asked = await call(*self._address, method, path, headers, body)
                await asked.head()
                away = _AWAY.get(asked.status)
                first = b"" if away else await asked.read()
                if away is None:
                    if not first and asked.status == 200:
                        raise Broken("it ended without a word")
                    reply = Reply(asked.status, asked.content_type, first, asked)
                    break
                reason = away
                asked.close()
            except OSError as err:
                if asked is None:
                    reason = "the engine does not accept connections"
                else:
                    asked.close()
                    if dropped:
                        raise _died() from err
                    dropped = True
                    reason = "the engine stopped"
            except asyncio.CancelledError:
                if asked is not None:
                    asked.close()
                raise
            enter("engine")
            self._lost(reason)
            if deadline is None:
                deadline = max(arrived, self._down_since) + self._settings.engine_wait_s
            await self._wait(deadline)
        try:
            yield reply
        finally:
            asked.close()

    def _lost(self, reason: str) -> None:
        self._reason = reason
        self._pulse.restarted()
        if self._back is None:
            self._back = asyncio.get_running_loop().create_future()
            self._down_since = time.monotonic()
            self._watcher = asyncio.ensure_future(self._watch(self._back))

    async def _watch(self, back: "asyncio.Future[None]") -> None:
        """One look-out for all who wait."""
        while True:
            await asyncio.sleep(_POLL_S)
            reason = await self.not_ready()
            if reason is None:
                break
            self._reason = reason
        self._back = None
        back.set_result(None)

    async def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if self._back is not None and left > 0:
            # Not wait_for: before Python 3.12 it can lose a cancellation.
            done, _ = await asyncio.wait({self._back}, timeout=left)
            if done:
                return
        raise Problem(503, "engine_unavailable", f"{self._reason}: try later", _RETRY_AFTER_S)
