"""Server-sent events, read from bytes as they come.

Bytes are cut into lines and events only at the line ends of the stream itself, and decoded by
nobody here: a character or a line split over reads comes out whole.
"""

from dataclasses import dataclass

MAX_EVENT_BYTES = 4 << 20


class TooLong(ValueError):  # noqa: N818  (says what happened)
    """One event is larger than MAX_EVENT_BYTES: not a stream of events."""


@dataclass(frozen=True)
class Event:
    """One event: its `data:` lines joined by newlines, and its name ("" if it has none)."""

    data: bytes
    name: bytes = b""


class Parser:
    """Feed it what was read; get the events that are complete by now. Comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line whose end has not come
        self._skip_lf = False  # the last line ended with CR: an LF now belongs to it
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """Events that end in `chunk`, in order.

        Raises:
            TooLong: an event grew beyond MAX_EVENT_BYTES.
        """
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest = lines.pop()
            if self._size + len(self._rest) > MAX_EVENT_BYTES:
                raise TooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        if lines and lines[-1].endswith(b"\r"):
            self._skip_lf = True
        events = []
        for line in lines:
            event = self._line(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: bytes) -> Event | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = Event(b"\n".join(self._data), self._name) if self._data else None
            self._data, self._name, self._size = [], b"", 0
            return event
        self._size += len(line)
        if self._size > MAX_EVENT_BYTES:
            raise TooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        return None
