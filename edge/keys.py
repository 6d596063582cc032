"""API keys as the operator's file has them: names and hashes, never a key itself. Pure.

One key a line: `NAME SHA256 [rate=N] [expires=YYYY-MM-DD]`; blank lines and what follows a `#` are
passed over. `edge key` writes such files; a rollout puts what is in them on the hosts.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

PREFIX = "edge-"
HOST = "host"
"""The name under which the proxy counts whoever has the engine's own key."""
MAX_RATE = 100_000
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_WORD = "[A-Za-z0-9_-]"
_IN_THE_CLEAR = re.compile(rf"(?<!{_WORD}){PREFIX}{_WORD}{{43}}(?!{_WORD})")


class KeysError(Exception):
    """A file of keys that cannot be used: a line for each thing that is wrong, with the way out.

    Of the file's own words only names are repeated: any other may be a key by mistake.
    """


@dataclass(frozen=True)
class ApiKey:
    """Who may ask. As plain data it is what the proxy reads."""

    name: str
    sha256: str
    rate_per_minute: int | None = None
    """Requests a minute; None: as many as it likes."""
    expires: int | None = None
    """Unix seconds at which it is no longer valid: the end of its last day, UTC."""

    @property
    def last_day(self) -> date | None:
        """The last day on which it is valid, in UTC; None: for ever."""
        return (
            None if self.expires is None else datetime.fromtimestamp(self.expires - 1, UTC).date()
        )

    def expired(self, now: float) -> bool:
        """Whether it is over at `now` (Unix seconds)."""
        return self.expires is not None and now >= self.expires

    @property
    def line(self) -> str:
        """The key as a line of the file."""
        rate = f" rate={self.rate_per_minute}" if self.rate_per_minute is not None else ""
        expires = f" expires={self.last_day}" if self.expires is not None else ""
        return f"{self.name} {self.sha256}{rate}{expires}\n"


def make(name: str, rate: int | None = None, last_day: date | None = None) -> tuple[str, ApiKey]:
    """A new random key of 256 bits, and what may be written down of it.

    Raises:
        KeysError: the name or the rate is not one.
    """
    if problem := _name_problem(name) or _rate_problem(rate):
        raise KeysError(problem)
    key = PREFIX + secrets.token_urlsafe(32)
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    return key, ApiKey(name, sha256, rate, None if last_day is None else end_of(last_day))


def end_of(day: date) -> int:
    """The Unix second at which a day is over in UTC."""
    return int(datetime.combine(day, time(), UTC).timestamp()) + 86_400


def parse(text: str, where: str) -> tuple[ApiKey, ...]:
    """The keys of a file's text; `where` is what messages call it.

    Raises:
        KeysError: every line that cannot be used, and why.
    """
    problems: list[str] = []
    keys: dict[str, ApiKey] = {}
    names: dict[str, str] = {}  # by hash
    for number, line in enumerate(text.split("\n"), 1):
        try:
            key = _parse_line(line)
            if key is None:
                continue
            if key.name in keys:
                raise ValueError(f"the name {key.name} is there twice; `edge key new` takes others")
            if key.sha256 in names:
                raise ValueError(
                    f"{key.name} has the key of {names[key.sha256]}; make one for each"
                )
        except ValueError as error:
            problems.append(f"{where}, line {number}: {error}")
            continue
        keys[key.name] = key
        names[key.sha256] = key.name
    if problems:
        raise KeysError("\n".join(problems))
    return tuple(keys.values())


def secret(text: str, where: str) -> str:
    """The key itself in a file that holds one and nothing else, as `edge key new` prints it.

    Raises:
        KeysError: it holds something else. Nothing of the text is repeated.
    """
    words = text.split()
    if len(words) == 1 and words[0].isascii() and words[0].isprintable():
        return words[0]
    try:
        listed = parse(text, where)
    except KeysError:
        listed = ()
    if listed:
        found = "it is a list of keys, which has their hashes only"
    elif len(words) == 1:
        found = "what is in it is none"
    elif words:
        found = "there is more in it than one word"
    else:
        found = "it is empty"
    raise KeysError(f"{where} must hold one key in the clear, as `edge key new` prints it; {found}")


def without(text: str, name: str) -> str:
    """A file's text without the line of one key; everything else stays as it was."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.partition("#")[0].split()[:1] != [name])


def valid(keys: Iterable[ApiKey], now: float) -> list[ApiKey]:
    """The keys that are not over at `now` (Unix seconds)."""
    return [key for key in keys if not key.expired(now)]


def _parse_line(line: str) -> ApiKey | None:
    if _IN_THE_CLEAR.search(line):
        raise ValueError(
            "it holds a key in the clear, which whoever reads the file could use: take it out, and "
            "make another with `edge key new NAME --file FILE`, which writes the hash only"
        )
    words = line.partition("#")[0].split()
    if not words:
        return None
    name, sha256, *options = [*words, ""] if len(words) == 1 else words
    if problem := _name_problem(name, repeat=False):
        raise ValueError(problem)
    if not _SHA256.fullmatch(sha256):
        raise ValueError(
            "the second word must be the key's SHA-256, 64 hexadecimal digits; `edge key new NAME "
            "--file FILE` writes such a line"
        )
    given = _options(options)
    return ApiKey(name, sha256.lower(), _rate(given.get("rate")), _expires(given.get("expires")))


def _name_problem(name: str, *, repeat: bool = True) -> str:
    if _IN_THE_CLEAR.search(name):
        return "the name is a key in the clear; a name says who has the key"
    if name == HOST:
        return f"the name {HOST} is the host's own; take another"
    if not NAME.fullmatch(name):
        said = f"{name!r}" if repeat else "the first word"
        return f"{said} is no name: 1 to 64 letters, digits and . _ -"
    return ""


def _rate_problem(rate: int | None) -> str:
    if rate is None or 1 <= rate <= MAX_RATE:
        return ""
    return f"rate must be a whole number of requests a minute from 1 to {MAX_RATE}"


def _options(words: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals or option not in ("rate", "expires"):
            raise ValueError("after the hash there may only be rate=N and expires=YYYY-MM-DD")
        if option in given:
            raise ValueError(f"{option}= is there twice; leave one")
        given[option] = value
    return given


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    rate = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if problem := _rate_problem(rate):
        raise ValueError(problem)
    return rate


def _expires(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        # Not fromisoformat alone: it takes 20260131 and 2026-W05-6 as well.
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        return end_of(date.fromisoformat(text))
    except ValueError:
        raise ValueError("expires must be a day, as expires=2027-01-31") from None
