"""Who asks, and whether they may: keys, rates, and pages of other sites."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Request

from .config import PREFIX, ConfigError, Settings
from .keys import Keyring
from .problem import bad_request


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    client: str
    """One for the queue: its key's name, or the address that it comes from."""
    key: str | None = None
    """Name of its key, where keys are asked for."""


class Access:
    """Decides for each request; without a file of keys everybody may ask."""

    def __init__(self, settings: Settings) -> None:
        """Raises: ConfigError: the file of keys cannot be used."""
        self._origins = settings.cors_origins
        self._keys: Keyring | None = None
        if path := settings.api_keys_file:
            try:
                self._keys = Keyring(Path(path), settings.engine_key)
            except (OSError, ValueError) as err:
                raise ConfigError(f"{PREFIX}API_KEYS_FILE={path!r} cannot be used: {err}") from None

    def admit(self, request: Request, *, counts: bool = True) -> Caller:
        """Who asks.

        Raises:
            Problem: 401 it has no key in force; 403 a page of another site asks; 429 its key has
                used up its rate (where the request `counts`).
        """
        headers = request.headers
        origin = headers.get("origin")
        # Any content type is read as JSON (curl -d), so a foreign page's simple request must be
        # told apart by what browsers always add to it.
        if (
            origin is not None
            and origin not in self._origins
            and not _is_own(origin, headers.get("host"))
        ):
            raise bad_request(f"pages of {origin[:200]} may not use this server", 403)
        if self._keys is None:
            return Caller(request.client.host if request.client else "")
        key = self._keys.holder(_token(headers.get("authorization")))
        if counts:
            self._keys.spend(key)
        return Caller(f"key {key.name}", key.name)


def _token(header: str | None) -> bytes | None:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    return token.strip().encode("latin-1")  # the bytes as they came


def _is_own(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # "http://["
        return False
