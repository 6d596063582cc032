"""Who may ask a chat proxy: where it listens, and with which keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address

from edge.keys import ApiKey, valid


def only_this_host(listen: str) -> bool:
    """Whether an address that the proxy listens on is reached from the host itself only."""
    address = ip_address(listen)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def who_may_ask(listen: str, keys: Sequence[ApiKey] | None, now: float) -> str:
    """In words: "this host only, no keys", "the network, 3 keys". `keys` None: none asked for."""
    where = "this host only" if only_this_host(listen) else "the network"
    if keys is None:
        return f"{where}, no keys"
    count = len(valid(keys, now))
    over = f" ({len(keys) - count} expired)" if len(keys) > count else ""
    return f"{where}, {count} {'key' if count == 1 else 'keys'}{over}"


def why_refused(listen: str, keys: Sequence[ApiKey] | None, api_keys_file: str, now: float) -> str:
    """Why a proxy must not listen like this, and the way out; "" if it may."""
    if only_this_host(listen) or (keys is not None and valid(keys, now)):
        return ""
    what = "serves the network, so it must ask for keys"
    stay = 'or proxy_listen = "127.0.0.1" to serve the host itself only'
    if keys is None:
        return (
            f"{what}: run `edge key new NAME --file inventory/api-keys`, and set api_keys_file = "
            f'"inventory/api-keys"; {stay}'
        )
    none = "every key has expired" if keys else "there is none"
    return (
        f"{what}, and in {api_keys_file} {none}: run `edge key new NAME --file {api_keys_file}`; "
        f"{stay}"
    )


def warnings(keys: Sequence[ApiKey] | None, now: float) -> list[str]:
    """What an operator should know of keys that are over."""
    return [
        f"the key {key.name} expired after {key.last_day}: who has it is refused; `edge key revoke "
        f"{key.name}` takes it out"
        for key in keys or ()
        if key.expired(now)
    ]
