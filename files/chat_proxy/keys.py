"""API keys: who may ask, how often, and until when. The file holds hashes, never keys.

The file is JSON, written by the rollout: `{"keys": [{"name", "sha256", "rate_per_minute",
"expires"}]}`, with null for no rate and no expiry; `expires` is Unix seconds.
"""

import hashlib
import hmac
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .problem import Problem

logger = logging.getLogger("chat_proxy")

HOST = "host"
"""The name under which the engine's own key is taken: its readers can use the engine anyway."""
_FIELDS = {"name", "sha256", "rate_per_minute", "expires"}


@dataclass(frozen=True)
class Key:
    """One line of the file."""

    name: str
    sha256: bytes = field(repr=False)
    rate_per_minute: int | None = None
    expires: float | None = None
    """Unix seconds; None: never."""


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read a file of keys.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no file of keys; the text says where, and holds nothing of the file.
    """
    try:
        with path.open("rb") as file:
            listed = json.load(file)["keys"]
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError('it is not JSON with a list "keys"') from None
    if not isinstance(listed, list):
        raise ValueError('"keys" is no list')
    keys = tuple(_key(one, number) for number, one in enumerate(listed, 1))
    if len({key.name for key in keys} | {HOST}) != len(keys) + 1:
        raise ValueError(f"two keys have one name, or one is named {HOST}")
    return keys


def _key(found: object, number: int) -> Key:
    wrong = ValueError(f"key number {number} in it is none")
    if not isinstance(found, dict) or set(found) != _FIELDS:
        raise wrong
    name, rate, expires = found["name"], found["rate_per_minute"], found["expires"]
    if not (isinstance(name, str) and name.isprintable() and len(name.split()) == 1):
        raise wrong
    if not (rate is None or (type(rate) is int and rate > 0)):
        raise wrong
    if not (expires is None or type(expires) in (int, float)):
        raise wrong
    try:
        digest = bytes.fromhex(found["sha256"])
    except (TypeError, ValueError):
        raise wrong from None
    if len(digest) != hashlib.sha256().digest_size:
        raise wrong
    return Key(name, digest, rate, expires)


class Keyring:
    """The keys in force. A changed file is read again; a broken one leaves the last good keys."""

    def __init__(self, path: Path, engine_key: str | None) -> None:
        """Raises: OSError, ValueError: as `read_keys`."""
        self._path = path
        self._host = () if engine_key is None else (Key(HOST, _digest(engine_key.encode())),)
        self._seen = self._stamp()
        self._keys: Sequence[Key] = (*read_keys(path), *self._host)
        self._buckets: dict[str, _Bucket] = {}
        self._complaint = ""

    def holder(self, token: bytes | None) -> Key:
        """The key that a client sent.

        Raises:
            Problem: 401, it sent none, or none that is in force.
        """
        self._refresh()
        if token is None:
            raise refused("this server wants a key: send the header Authorization: Bearer KEY")
        digest = _digest(token)
        found: Key | None = None
        for key in self._keys:  # all of them, whichever fits: time tells nothing
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None:
            raise refused("this key is not known here")
        if found.expires is not None and time.time() >= found.expires:
            raise refused(f"the key {found.name} has expired")
        return found

    def spend(self, key: Key) -> None:
        """Count one request.

        Raises:
            Problem: 429, the key has used up its rate; it says when the next one is free.
        """
        if key.rate_per_minute is None:
            return
        bucket = self._buckets.get(key.name)
        if bucket is None or bucket.per_minute != key.rate_per_minute:
            bucket = self._buckets[key.name] = _Bucket(key.rate_per_minute)
        wait = bucket.take(time.monotonic())
        if wait:
            raise Problem(
                429,
                "rate_limited",
                f"the key {key.name} may send {key.rate_per_minute} requests a minute: "
                f"try again in {wait} s",
                wait,
            )

    def _refresh(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self._keys = (*read_keys(self._path), *self._host)
            self._seen = stamp
        except OSError as err:  # it may pass: looked at again at the next request
            self._complain(err)
        except ValueError as err:
            self._seen = stamp
            self._complain(err)

    def _complain(self, err: Exception) -> None:
        if str(err) != self._complaint:
            self._complaint = str(err)
            logger.error("%s cannot be used, the keys before it hold on: %s", self._path, err)

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        # ctime, too: it also changes when a file is edited in place, or may be read again
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


class _Bucket:
    """A minute's requests may come at once; then they come back evenly."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._at = time.monotonic()

    def take(self, now: float) -> int:
        """Take one: 0, or whole seconds until there is one to take."""
        refill = (now - self._at) * self.per_minute / 60
        self._left = min(self.per_minute, self._left + refill)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0
        return math.ceil((1 - self._left) * 60 / self.per_minute)


def refused(message: str) -> Problem:
    """401 with what the client should do."""
    return Problem(401, "authentication_error", message)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
