"""A network that fails at a chosen moment: a TCP proxy on loopback that loses replies and stops between commands.

What passes is forwarded as it is; only requests that carry a script (``EVALSHA``) are ever tampered with, so that a
client's greeting isn't what gets lost.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("Proxy",)

_COMMAND = re.compile(rb"\*\d+\r\n\$7\r\nEVALSHA\r\n")


class Proxy:
    """Stands before the server at ``port``; use it as a context manager.

    ``lost`` counts the replies that were lost, ``seen`` the connections that were made.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lose: tuple[Callable[[], object], int] | None = None
        self._stop: tuple[int, Callable[[], object]] | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = self.seen = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (self._listener, *self._sockets):
            _cut(each)
        for thread in self._threads:
            thread.join(10)

    def url(self, db: int = 0) -> str:
        """Where a client reaches the server through this proxy."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def lose_reply(self, when: Callable[[], object] = lambda: True, keep: int = 0) -> None:
        """The next request is forwarded; once ``when()`` is true, ``keep`` bytes of its reply, and then nothing."""
        self._lose = (when, keep)

    def stop_before(self, number: int, call: Callable[[], object]) -> None:
        """Of the next ``number`` scripts the last one is forwarded when ``call`` has returned."""
        self._stop = (number, call)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            except OSError:
                return
            self.seen += 1
            self._sockets += [client, server]
            doomed: list[tuple[Callable[[], object], int]] = []
            answered = threading.Event()
            self._start(self._up, client, server, doomed, answered)
            self._start(self._down, client, server, doomed, answered)

    def _up(self, client: socket.socket, server: socket.socket, doomed: list, answered: threading.Event) -> None:
        held = b""
        try:
            while data := client.recv(65536):
                if self._lose and b"EVALSHA" in data:
                    doomed.append(self._lose)
                    self._lose = None
                if self._stop:
                    held += data
                    commands = list(_COMMAND.finditer(held))
                    number, call = self._stop
                    if len(commands) < number:
                        continue
                    self._stop = None
                    position = commands[number - 1].start()
                    answered.clear()
                    if position:
                        server.sendall(held[:position])
                        answered.wait(5)  # the server has seen what came before
                    call()
                    data, held = held[position:], b""
                server.sendall(data)
        except OSError:
            pass
        finally:
            _cut(client)
            _cut(server)

    def _down(self, client: socket.socket, server: socket.socket, doomed: list, answered: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                answered.set()
                if doomed:
                    when, keep = doomed.pop()
                    client.sendall(data[:keep])
                    until = time.monotonic() + 5
                    while not when() and time.monotonic() < until:
                        time.sleep(0.005)
                    self.lost += 1
                    break
                client.sendall(data)
        except OSError:
            pass
        finally:
            _cut(client)
            _cut(server)


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
