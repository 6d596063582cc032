"""Who asks, and whether they may: keys, rates, and pages of other sites."""

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Request

from .config import PREFIX, ConfigError, Settings
from .keys import Keyring
from .problem import bad_request
from .record import Record


class Access:
    """Decides for each request; without a file of keys everybody may ask."""

    def __init__(self, settings: Settings) -> None:
        """Raises: ConfigError: the file of keys cannot be used."""
        self._origins = settings.cors_origins
        self._names = {_host_name(origin.partition("://")[2]) for origin in self._origins}
        self._keys: Keyring | None = None
        if path := settings.api_keys_file:
            try:
                self._keys = Keyring(Path(path), settings.engine_key)
            except (OSError, ValueError) as err:
                raise ConfigError(f"{PREFIX}API_KEYS_FILE={path!r} cannot be used: {err}") from None

    def admit(self, request: Request, record: Record | None = None) -> str:
        """Who asks, as the queue tells clients apart: a key, or the address it comes from.

        Where the request is one that counts, `record` gets the address and the key's name.

        Raises:
            Problem: 401 it has no key in force; 403 a page of another site asks; 429 its key has
                used up its rate.
        """
        if record is not None:
            record.address = _address(request)
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
            self._refuse_rebound(headers.get("host", ""))
            return _address(request)
        key = self._keys.holder(_token(headers.get("authorization")))
        if record is not None:
            record.caller = key.name
            self._keys.spend(key)
        return f"key {key.name}"

    def _refuse_rebound(self, host: str) -> None:
        """Refuse a page whose own name somebody let point to this host (DNS rebinding).

        To the browser it is a page of ours, and no key would stop it. A name that an attacker can
        have has a dot, and is no address.
        """
        name = _host_name(host)
        if "." not in name or _is_address(name) or name.endswith(".localhost"):
            return
        if name not in self._names:
            raise bad_request(
                f"this server is not known as {name[:200]}: use its address, or name the site "
                "in cors_origins",
                403,
            )


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _host_name(host: str) -> str:
    """The name in "name:port", in lower case; "" if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


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
