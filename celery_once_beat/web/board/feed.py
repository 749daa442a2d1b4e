"""The current page, and its changes for viewers. While there are none, Redis isn't read.

One look serves all viewers. It is made when somebody asks and the last one is older than ``every`` seconds; in a
thread, since the store's client blocks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import tzinfo
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.logs import about
from celery_once_beat.status import Report, Sight

from . import words
from .page import Page, changes, make_page

logger = logging.getLogger(__name__)

#: Changes kept for a viewer who was away for a moment. After a longer time the whole page is read again.
_KEPT = 60
#: The share of a core that looking may take; with very many entries the page changes less often.
_SHARE = 0.2
#: Seconds between two checks whether the server is stopping.
_NAP = 0.5


class Feed:
    """The page, and its viewers. Belongs to one event loop; ``look`` is called in a thread, never twice at a time."""

    def __init__(self, look: Callable[[], Sight], zone: tzinfo, every: float = 1.0) -> None:
        self._look = look
        self._zone = zone
        self._every = every
        # Positions of another process mean nothing here.
        self._era = secrets.token_hex(4)
        self._number = 0
        self._news: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._looking: asyncio.Task[None] | None = None
        self._due = 0.0
        self._broken = False
        self.page = Page()
        #: What the last look showed; None where Redis doesn't answer.
        self.report: Report | None = None
        #: How many follow the news.
        self.viewers = 0

    @property
    def position(self) -> str:
        """Where in the news the present page stands."""
        return f"{self._era}-{self._number}"

    async def fresh(self) -> Page:
        """Return a page that is at most ``every`` seconds old, or says why it is older."""
        if self._looking is None and time.monotonic() >= self._due:
            self._looking = asyncio.create_task(self._look_once())
        if self._looking is not None:
            await asyncio.shield(self._looking)  # who asked may go away: the others wait for the same
        return self.page

    async def follow(self, position: str) -> AsyncIterator[str]:
        """Yield the changes since the page at ``position`` as server-sent events, as they come.

        Between them it yields '' now and then, so that the caller can check whether to go on.
        """
        era, _, number = position.partition("-")
        seen = int(number) if era == self._era and number.isdecimal() and len(number) < 16 else -1  # noqa: PLR2004
        yield "retry: 2000\n\n"
        while True:
            await self.fresh()
            oldest = self._news[0][0] if self._news else self._number + 1
            if not oldest - 1 <= seen <= self._number:
                seen = self._number
                yield self._event(seen, "anew", "{}")
            for number_, event in [news for news in self._news if news[0] > seen]:
                seen = number_
                yield event
            yield ""
            await asyncio.sleep(min(max(self._due - time.monotonic(), 0.01), _NAP))

    # -- looking ----------------------------------------------------------------------------------------------

    async def _look_once(self) -> None:
        took = 0.0
        try:
            page, changed, took = await asyncio.to_thread(self._look_in_thread, self.page)
            self.page = page
            self._number += 1
            if changed is None:
                event = self._event(self._number, "anew", "{}")
            else:
                event = self._event(self._number, "news", json.dumps(changed, separators=(",", ":")))
            self._news.append((self._number, event))
        finally:
            self._due = time.monotonic() + max(self._every, took / _SHARE)
            self._looking = None

    def _look_in_thread(self, old: Page) -> tuple[Page, dict[str, Any] | None, float]:
        """Return the page, what changed, and the seconds of CPU that it took."""
        began = time.thread_time()
        try:
            sight = self._look()
            page = make_page(sight, self._zone, old)
            changed = changes(old, page)
        except OnceError as exc:
            self.report = None
            page = replace(old, trouble=f"Redis can't be read: {words.plain(str(exc).removeprefix('Redis: '))}")
            return page, changes(old, page), 0.0
        except Exception:
            self.report = None
            if not self._broken:
                logger.exception("once: the board can't show what it finds", extra=about("board_broken"))
            self._broken = True
            page = replace(old, trouble="The board failed, its log says why")
            return page, changes(old, page), 0.0
        self._broken = False
        self.report = sight.report
        return page, changed, time.thread_time() - began

    def _event(self, number: int, kind: str, data: str) -> str:
        return f"id: {self._era}-{number}\nevent: {kind}\ndata: {data}\n\n"
