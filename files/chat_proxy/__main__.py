"""`python -m chat_proxy`: settings from the environment, a socket from systemd or an own one."""

import asyncio
import logging
import os
import socket
import sys
from typing import ClassVar

import uvicorn

from .app import create_app
from .config import ConfigError, Settings
from .connection import Connection
from .service import Service
from .systemd import notify, passed_socket

_ACCEPTED_S = 0.1  # for requests of connections that were just accepted to arrive
_LAST_WORDS_S = 3  # after the open answers were ended


class Server(uvicorn.Server):
    """uvicorn, with a word to systemd and a bound on open answers that the clients hear of."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        for server in self.servers:
            server.close()
        # uvicorn closes idle connections next; one whose request is on its way is not idle
        await asyncio.sleep(_ACCEPTED_S)
        asyncio.get_running_loop().call_later(
            self._service.settings.drain_s, self._service.abort_all
        )
        await super().shutdown(sockets)


def main() -> int:
    """Serve until SIGTERM; 2 when the settings, the keys or the socket cannot be used."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.from_env(os.environ)
        app = create_app(settings)
        sock = passed_socket(os.environ, os.getpid()) or _own_socket(settings)
    except (ConfigError, ValueError, OSError) as err:
        print(f"chat_proxy: {err}", file=sys.stderr)
        return 2

    class BoundConnection(Connection):
        head_timeout_s = settings.head_timeout_s
        idle: ClassVar[dict[Connection, None]] = {}

    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundConnection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.drain_s) + _LAST_WORDS_S,
    )
    Server(config, app.state.service).run(sockets=[sock])
    return 0


def _own_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.listen, settings.port))
    except OSError as err:
        sock.close()
        raise OSError(f"cannot listen on {settings.listen}:{settings.port}: {err}") from None
    return sock


if __name__ == "__main__":
    sys.exit(main())
