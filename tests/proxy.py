"""A network that fails when it is told to: a TCP proxy on loopback that loses replies and cuts connections.

What passes is forwarded as it is. Before a Redis only requests that carry a script (``EVALSHA``) or a command that is
named are ever tampered with, so that a client's greeting isn't what gets lost; before a RabbitMQ a connection is cut at
a method that is named.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Proxy:
    """Stands before the server at ``port``; use it as a context manager.

    ``lost`` counts the replies that were lost, ``seen`` the connections that were made. While ``away`` is true, those
    that come are cut at once.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lose: tuple[bytes, Callable[[], object]] | None = None
        self._cut_before: bytes | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = self.seen = 0
        self.away = False

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        _cut(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def url(self, db: int = 0) -> str:
        """Where a client reaches the server through this proxy."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def lose_reply(self, when: Callable[[], object] = lambda: True, of: bytes = b"EVALSHA") -> None:
        """The next request is forwarded; once ``when()`` is true, its connection is cut instead of a reply."""
        self._lose = (of, when)

    def cut_before(self, command: bytes) -> None:
        """The next request that has such a command isn't forwarded, and its connection is cut."""
        self._cut_before = command

    def cut(self) -> None:
        """Cut every connection that there is."""
        for each in self._sockets[:]:
            _cut(each)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.away:
                _cut(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
                server.settimeout(None)  # a connection may be idle for as long as it likes
            except OSError:  # it is down, and may come back
                _cut(client)
                continue
            self.seen += 1
            self._sockets += [client, server]
            self._join(client, server)

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        doomed: list[Callable[[], object]] = []
        self._start(self._carry, self._up, client, server, doomed)
        self._start(self._carry, self._down, server, client, doomed)

    def _carry(self, way: Callable[..., None], source: socket.socket, target: socket.socket, *known: object) -> None:
        """What comes from one end goes to the other, until the way is over: then the connection is cut."""
        try:
            way(source, target, *known)
        except OSError:
            pass
        finally:
            _cut(source)
            _cut(target)

    def _up(self, client: socket.socket, server: socket.socket, doomed: list) -> None:
        while data := client.recv(65536):
            if self._lose and self._lose[0] in data:
                doomed.append(self._lose[1])
                self._lose = None
            if self._cut_before and self._cut_before in data:
                self._cut_before = None
                self.lost += 1
                return
            server.sendall(data)

    def _down(self, server: socket.socket, client: socket.socket, doomed: list) -> None:
        while data := server.recv(65536):
            if doomed:
                when = doomed.pop()
                until = time.monotonic() + 5
                while not when() and time.monotonic() < until:
                    time.sleep(0.005)
                self.lost += 1
                return
            client.sendall(data)


#: Seconds by which a thread sleeps longer than asked, and takes to forward what it received.
_WAKING = 0.0001


class SlowProxy(Proxy):
    """Stands before a server that is so many ``seconds`` away, there and back; 0.0002 are the least.

    A round trip costs this process 70 µs of CPU.
    """

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(port)
        self._sleep = max(seconds / 2 - _WAKING, 0.0)

    def _up(self, source: socket.socket, target: socket.socket, *_: object) -> None:
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a second small write may wait for 40 ms
        while data := source.recv(65536):
            time.sleep(self._sleep)
            target.sendall(data)

    _down = _up


class Link(Proxy):
    """Stands between one process and one server, and fails until it is healed.

    ``dark``: nothing passes, and nobody is told; what was sent passes later. ``deaf``: requests pass and their
    replies are lost, with the connection. ``delay``: seconds by which each piece is late.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.heal()

    def __exit__(self, *exc: object) -> None:
        self.heal()
        super().__exit__(*exc)

    def heal(self) -> None:
        self.dark = self.deaf = False
        self.delay = 0.0

    def darken(self) -> None:
        self.dark = True

    def deafen(self) -> None:
        self.deaf = True

    def _up(self, source: socket.socket, target: socket.socket, *_: object) -> None:
        self._pass_on(source, target)

    def _down(self, source: socket.socket, target: socket.socket, *_: object) -> None:
        self._pass_on(source, target, replies=True)

    def _pass_on(self, source: socket.socket, target: socket.socket, *, replies: bool = False) -> None:
        while data := source.recv(65536):
            time.sleep(self.delay)
            while self.dark:
                time.sleep(0.02)
            if replies and self.deaf:
                return
            target.sendall(data)


class AmqpProxy(Proxy):
    """Stands before a RabbitMQ. ``methods`` are those that passed, as :data:`_METHODS` names them, in order."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.methods: list[str] = []
        self._cut_at: tuple[str, bool] | None = None
        self._hold: tuple[str, Callable[[], object]] | None = None
        self.held = False

    def url(self, db: int = 0) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def cut_at(self, method: str, *, away: bool = False) -> None:
        """The next ``method`` doesn't pass: its connection is cut instead; with ``away`` no other can be made then."""
        self._cut_at = (method, away)

    def hold(self, method: str, until: Callable[[], object]) -> None:
        """The next ``method`` passes once ``until()`` is true; ``held`` tells that it was within a minute."""
        self._hold = (method, until)

    def _up(self, source: socket.socket, target: socket.socket, *_: object) -> None:
        held = b""
        while data := source.recv(65536):
            held += data
            for frame in _frames(held):
                method = _METHODS.get(frame[7:11]) if frame[0] == 1 else None
                if method and self._cut_at and self._cut_at[0] == method:
                    (_, self.away), self._cut_at = self._cut_at, None
                    self.lost += 1
                    return
                if method and self._hold and self._hold[0] == method:
                    (_, until), self._hold = self._hold, None
                    give_up = time.monotonic() + 60
                    while not (holds := bool(until())) and time.monotonic() < give_up:
                        time.sleep(0.005)
                    self.held = holds
                target.sendall(frame)
                held = held[len(frame) :]
                if method:
                    self.methods.append(method)

    _down = _up


#: Class and method, two bytes each, as they begin a method's frame.
_METHODS = {
    b"\0\x55\0\x0a": "confirm.select",
    b"\0\x3c\0\x28": "basic.publish",
    b"\0\x3c\0\x50": "basic.ack",
    b"\0\x3c\0\x78": "basic.nack",
}


def _frames(data: bytes) -> Iterator[bytes]:
    """The whole frames that ``data`` begins with; a client's greeting is one too."""
    while len(data) >= 8:
        length = 8 if data.startswith(b"AMQP") else 8 + int.from_bytes(data[3:7], "big")
        if len(data) < length:
            return
        yield data[:length]
        data = data[length:]


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
