"""The systemd units of a host that serves."""

ENGINE, PROXY, SOCKET = "llama-server.service", "chat-proxy.service", "chat-proxy.socket"
UNITS = (ENGINE, SOCKET, PROXY)  # in the order in which they are restarted
PROXY_FIRST = (SOCKET, PROXY, ENGINE)


def name(unit: str) -> str:
    """A unit's name without its type, as the digests are named."""
    return unit.rpartition(".")[0]
