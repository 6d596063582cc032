"""Settings of the proxy, read once from environment variables named EDGE_PROXY_*."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

PREFIX = "EDGE_PROXY_"
ENGINE_KEY = "LLAMA_API_KEY"

MAX_BODY_BYTES = 1 << 20
"""A request's body, however large the context."""
_BODY_BESIDE_TEXT = 64 << 10
_BODY_BYTES_PER_TOKEN = 16  # a token of text is about 4; escapes like \u00e9 make it more
MAX_HELD_BYTES = 16 << 20
"""Bodies of all requests at one time: a fraction of the memory that the service may use."""
MAX_MESSAGES = 256


class ConfigError(Exception):
    """One line for each setting that cannot be used."""


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"must be a number from {low:g} to {high:g}") from None
        if not low <= value <= high:  # also refuses nan
            raise ValueError(f"must be from {low:g} to {high:g}")
        return value

    return parse


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("must look like http://127.0.0.1:8080")
    return text.rstrip("/")


def _origins(text: str) -> tuple[str, ...]:
    for one in text.split():
        if one != _as_browsers_send(one):
            raise ValueError("must be origins as browsers send them, such as https://shop.example")
    return tuple(text.split())


def _as_browsers_send(origin: str) -> str:
    """In lower case, without what goes without saying; "" if it is none."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    default = {"http": 80, "https": 443}.get(parts.scheme)
    if default is None or not re.fullmatch(r"[a-z0-9.:-]+", host):
        return ""
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, default) else f":{port}")


def _word(text: str) -> str:
    if not text or not text.isprintable() or " " in text:
        raise ValueError("must be one printable word")
    return text


def _key(text: str) -> str:
    if not text.isascii():
        raise ValueError("must be plain text")
    return _word(text)


def _setting(default: Any, parse: Callable[[str], Any], meaning: str) -> Any:
    return field(default=default, metadata={"parse": parse, "meaning": meaning})


_seconds = _number(0, 86_400)


@dataclass(frozen=True)
class Settings:
    """What the proxy runs with. Each field is the variable EDGE_PROXY_<NAME>; `_s` is seconds."""

    listen: str = _setting("127.0.0.1", _word, "address to bind when systemd passes no socket")
    port: int = _setting(8000, _whole(1, 65_535), "port to bind when systemd passes no socket")
    engine_url: str = _setting("http://127.0.0.1:8080", _url, "where llama-server listens")
    slots: int = _setting(1, _whole(1, 256), "generations at the same time: the engine's -np")
    queue_limit: int = _setting(64, _whole(0, 10_000), "requests that may wait for a slot")
    context_per_slot: int = _setting(2048, _whole(64, 1 << 20), "tokens: the engine's -c / -np")
    temperature: float = _setting(0.7, _number(0, 2), "when a request to /chat names none")
    max_tokens: int = _setting(
        512, _whole(1, 1 << 20), "of one answer of /chat: default and upper limit"
    )
    system_prompt: str = _setting("", str, "for /chat, when a request brings none; may be empty")
    queue_wait_s: float = _setting(120.0, _seconds, "how long a request waits for a slot")
    engine_wait_s: float = _setting(
        60.0, _seconds, "how long requests wait while the engine loads or restarts"
    )
    first_token_timeout_s: float = _setting(
        120.0, _seconds, "from the engine's taking a request to its first token"
    )
    total_timeout_s: float = _setting(600.0, _seconds, "from getting a slot to the last token")
    heartbeat_s: float = _setting(
        5.0, _number(0.05, 3600), "time between comments to a client of /chat that still waits"
    )
    head_timeout_s: float = _setting(
        10.0, _number(0.05, 3600), "how long a connection may go without a request's full head"
    )
    write_timeout_s: float = _setting(
        20.0, _number(0.05, 3600), "how long a client may take nothing of what waits for it"
    )
    drain_s: float = _setting(30.0, _seconds, "how long open answers may go on after SIGTERM")
    api_keys_file: str = _setting("", str, "JSON file of hashes; empty: everybody may ask")
    cors_origins: tuple[str, ...] = _setting((), _origins, "sites whose pages may ask")
    engine_key: str | None = field(default=None, repr=False)
    """From LLAMA_API_KEY, as the engine itself reads it; None: the engine wants no key."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request: more than a slot's context holds, in any spelling."""
        fits = _BODY_BESIDE_TEXT + _BODY_BYTES_PER_TOKEN * self.context_per_slot
        return min(MAX_BODY_BYTES, fits)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings.

        Raises:
            ConfigError: with one line for each variable that is wrong or unknown.
        """
        values: dict[str, Any] = {}
        problems: list[str] = []
        left = {name for name in environ if name.startswith(PREFIX)}
        for one in fields(cls):
            name = PREFIX + one.name.upper()
            if not one.metadata or name not in environ:
                continue
            left.discard(name)
            try:
                values[one.name] = one.metadata["parse"](environ[name])
            except ValueError as err:
                problems.append(f"{name}={environ[name]!r} {err} ({one.metadata['meaning']})")
        if ENGINE_KEY in environ:
            try:
                values["engine_key"] = _key(environ[ENGINE_KEY])
            except ValueError as err:
                problems.append(f"{ENGINE_KEY} {err}")  # never its value
        known = ", ".join(one.name.upper() for one in fields(cls) if one.metadata)
        problems += [f"{name} is not a setting (known: {known})" for name in sorted(left)]
        settings = cls(**values)
        if not problems and settings.max_tokens >= settings.context_per_slot:
            problems.append(
                f"{PREFIX}MAX_TOKENS={settings.max_tokens} leaves no room for a question in "
                f"{PREFIX}CONTEXT_PER_SLOT={settings.context_per_slot}"
            )
        if problems:
            raise ConfigError("\n".join(problems))
        return settings
