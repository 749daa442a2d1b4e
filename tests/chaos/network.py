"""A network that fails as told: one link, a TCP proxy on loopback, between one process and one server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Link:
    """Forwards what comes to ``port``. Its state may be changed from any thread, at any time.

    ``dark``: nothing passes, and nobody is told; what was sent passes later. ``deaf``: requests pass and their
    replies are lost, with the connection. ``delay``: seconds by which each piece is late.
    """

    def __init__(self, network: Network, target: int) -> None:
        self._network = network
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.dark = self.deaf = False
        self.delay = 0.0
        self.port = 0

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> None:
        """Break all connections; new ones may be made."""
        self._network.call(self._cut())

    def darken(self) -> None:
        self.dark = True

    def deafen(self) -> None:
        self.deaf = True

    def heal(self) -> None:
        self.dark = self.deaf = False
        self.delay = 0.0

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        await asyncio.gather(
            self._pump(reader, far_writer, replies=False), self._pump(far_reader, writer, replies=True)
        )
        self._writers -= ends

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        try:
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.dark:  # noqa: ASYNC110  # set from another thread, which an Event of asyncio's doesn't like
                    await asyncio.sleep(0.02)
                if replies and self.deaf:
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Network:
    """All links, in one thread of their own; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def link(self, target: int) -> Link:
        """A new link to the server on port ``target``."""
        link = Link(self, target)
        self._servers.append(self.call(link.listen()))
        self._links.append(link)
        return link

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            link.heal()
            await link._cut()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await task
