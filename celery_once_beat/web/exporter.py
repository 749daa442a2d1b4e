"""Serves the metrics alone: for a project that has a board elsewhere, or none.

There is no token: whoever reaches the address reads how the schedule stands, and its names. So it is the loopback's
unless the user names another one.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery_once_beat.errors import OnceError
from celery_once_beat.status import Report, View
from celery_once_beat.status.metrics import OnceCollector

from .loopback import is_loopback, names_this_machine

#: Seconds for which one look at Redis serves everybody who asks.
_LASTS = 1.0
#: Seconds that a client has for all of it: to send its request, and to take the answer.
_PATIENCE = 10.0
_NOT_FOR_OTHERS = b"Host: expected localhost or 127.0.0.1. --host 0.0.0.0 lets other machines read the metrics.\n"
#: Clients at a time: each has a thread. For one more the oldest goes, so that half-sent requests keep nobody out.
MOST_CLIENTS = 32


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        #: By client, until when it has a thread, monotonic.
        self._clients: dict[socket.socket, float] = {}
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let a thread answer."""
        clients = list(self._clients)
        if len(clients) >= MOST_CLIENTS:
            self._clients.pop(clients[0], None)
            _end(clients[0])
        self._clients[request] = time.monotonic() + _PATIENCE
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End what takes too long: a byte now and then keeps a socket's own time limit from running out."""
        for request, until in list(self._clients.items()):
            if time.monotonic() > until:
                _end(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went, or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _end(request: socket.socket) -> None:
    with suppress(OSError):  # it ends at this moment
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE
    server_version = "once"
    sys_version = ""

    def log_message(self, *_: Any) -> None:
        """Log nothing: it is asked every few seconds."""


class Exporter:
    """The WSGI application; its view and its collector are used by one thread at a time.

    ``address`` is where it listens. On a loopback it answers only where the Host header says so, too: a page of another
    site whose name points here (DNS rebinding) gets nothing.
    """

    def __init__(self, view: View, entries: int, address: str) -> None:
        self._for_this_machine = is_loopback(address)
        self._view = view
        self._collector = OnceCollector(entries)
        self._lock = threading.Lock()
        self._due = 0.0
        self._report: Report | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        status, content_type, text = self._answer(environ)
        start_response(status, [("content-type", content_type), ("cache-control", "no-store")])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else text]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, b"GET and HEAD only.\n"
        if self._for_this_machine and not names_this_machine(environ.get("HTTP_HOST")):
            return "400 Bad Request", plain, _NOT_FOR_OTHERS
        if environ.get("PATH_INFO") != "/metrics":
            return "404 Not Found", plain, b"There is /metrics, and nothing else.\n"
        with self._lock:
            content_type, text = self._collector.expose(self._fresh(), environ.get("HTTP_ACCEPT", ""))
        return "200 OK", content_type, text

    def _fresh(self) -> Report | None:
        if time.monotonic() >= self._due:
            try:
                self._report = self._view.snapshot().report
            except OnceError:
                self._report = None
            self._due = time.monotonic() + _LASTS
        return self._report


def serve(view: View, listener: socket.socket, entries: int) -> None:
    """Serve /metrics on a listening socket until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = listener.getsockname()
    server = _Server(address[:2], _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = address[:2]
    server.setup_environ()
    server.set_app(Exporter(view, entries, address[0]))
    try:
        server.serve_forever(poll_interval=0.5)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        view.close()
