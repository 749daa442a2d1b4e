"""The server of the board, and of the metrics: where it listens, and how it ends."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from celery_once_beat.errors import SettingError
from celery_once_beat.web.loopback import bind, is_loopback

from .guard import check_token

#: Connections at a time, viewers among them.
_MOST_CONNECTIONS = 256
#: Seconds that a client has for a request's head, and between two requests.
_PATIENCE = 5.0


class _Connection(H11Protocol):
    """Ends when its client sends no whole head in time. uvicorn's own limit ends with a request's first byte."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        # Each request has a cycle of its own, which it gets once its head is there.
        self.loop.call_later(_PATIENCE, self._end_unless_asked, self.cycle)

    def _end_unless_asked(self, last: Any) -> None:
        if self.cycle is last:
            self.transport.close()


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """Return the listening socket; raises SettingError where it may not be, or can't be, listened."""
    check_token(token)
    listener = bind(host, port)
    address = listener.getsockname()[0]
    if token is None and not is_loopback(address):
        listener.close()
        raise SettingError(
            f"--host: found {host!r}, which others can reach, and no token; expected a loopback address like "
            "127.0.0.1, or a token in ONCE_BOARD_TOKEN"
        )
    return listener


def serve(make: Callable[[Callable[[], bool]], ASGIApp], listener: socket.socket) -> None:
    """Serve an application until SIGINT or SIGTERM. ``make`` makes it, given what says that the server wants to end."""
    config = uvicorn.Config(
        make(lambda: server.should_exit),
        http=_Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    # uvicorn shuts down, and then raises the signal again for the handler that was set before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
