"""The two things that systemd and the proxy tell each other: a socket, and "ready"."""

import os
import socket
from collections.abc import Mapping

_FIRST_FD = 3  # SD_LISTEN_FDS_START


def passed_socket(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """The listening socket that the service manager passed, or None.

    Raises:
        ValueError: more than one socket was passed.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return None
    count = int(environ.get("LISTEN_FDS", "0"))
    if count == 0:
        return None
    if count != 1:
        raise ValueError(f"systemd passed {count} sockets; chat-proxy.socket must have one")
    # fileno= asks the kernel for the family: uvicorn's own fd= calls every socket AF_UNIX, and the
    # event loop then leaves TCP_NODELAY off, which holds tokens back.
    return socket.socket(fileno=_FIRST_FD)


def notify(state: str) -> None:
    """Tell a Type=notify unit about `state` ("READY=1"); nothing when nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())
