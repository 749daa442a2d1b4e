"""The current page, and its changes for viewers. While there are none, Redis isn't read.

One look serves all viewers. It is made when somebody asks and the last one is older than ``every`` seconds; in a
thread, since the store's client blocks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import tzinfo
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.logs import Logged, about, guarded
from celery_once_beat.status import Report, Sight

from . import words
from .grid import Shown
from .page import Page, make_page

logger = guarded(logging.getLogger(__name__))

#: The share of a core that looking may take; with very many entries the page changes less often.
_SHARE = 0.2
#: Seconds between two checks whether the server is stopping.
_NAP = 0.5
#: Ends what keeps a page that was read from being of this moment.
_OLDER = " What is shown is older. `celery -A proj once doctor` says what to set."


class Feed:
    """The page, and its viewers. Belongs to one event loop; ``take`` is called in a thread, never twice at a time."""

    def __init__(self, take: Callable[[], Sight], zone: tzinfo, every: float = 1.0) -> None:
        self._take = take
        self._zone = zone
        self._every = every
        self._refreshing: asyncio.Task[None] | None = None
        self._due = 0.0
        self._logged = Logged()
        self.page = Page()
        #: What the last look showed; None where Redis doesn't answer.
        self.report: Report | None = None
        #: How many follow the news.
        self.viewers = 0

    async def fresh(self) -> Page:
        """Return a page that is at most ``every`` seconds old, or says why it is older."""
        if self._refreshing is None and time.monotonic() >= self._due:
            self._refreshing = asyncio.create_task(self._refresh_once())
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)  # who asked may go away: the others wait for the same
        return self.page

    async def follow(
        self, before: Shown | None, show: Callable[[Page], Shown], closing: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """Yield what changes in the view that ``show`` makes, from ``before`` on, as server-sent events.

        None: it isn't known any more what the viewer sees, so that it has to read its page anew. It ends soon after
        ``closing`` says so.
        """
        yield "retry: 2000\n\n"
        while not closing():
            page = await self.fresh()
            if before is None:
                before = show(page)
                yield _event("anew", before.position, {})
            elif before.page is not page:
                shown = show(page)
                yield _event("news", shown.position, news_between(before, shown))
                before = shown
            await asyncio.sleep(min(max(self._due - time.monotonic(), 0.01), _NAP))

    # -- looking ----------------------------------------------------------------------------------------------

    async def _refresh_once(self) -> None:
        took = 0.0
        try:
            self.page, took = await asyncio.to_thread(self._refresh_in_thread, self.page)
        finally:
            self._due = time.monotonic() + max(self._every, took / _SHARE)
            self._refreshing = None

    def _refresh_in_thread(self, old: Page) -> tuple[Page, float]:
        """Return the page, and the seconds of CPU that it took."""
        began = time.thread_time()
        try:
            sight = self._take()
            page = make_page(sight, self._zone, old)
        except Exception as exc:
            self.report, why = None, "The board failed, its log says why."
            if isinstance(exc, OnceError):
                why = f"Redis can't be read: {words.plain(str(exc).removeprefix('Redis: '))}."
            elif self._logged.is_new("page"):
                logger.exception("once: the board can't show what it finds", extra=about("board_broken"))
            return replace(old, stale=why + (_OLDER if old.report else "")), 0.0
        self._logged.end("page")
        self.report = sight.report
        return page, time.thread_time() - began


def news_between(old: Shown, new: Shown) -> dict[str, Any]:
    """Return what a viewer of ``old`` has to change to see ``new``."""
    return {
        "worries": new.page.looks["attention"],
        "stale": bool(new.page.stale),
        "now": new.page.moment.timestamp(),
        "parts": {key: html for key, html in new.parts.items() if old.parts[key] != html},
        "rows": {key: html for key, html in new.rows.items() if old.rows.get(key) != html},
        **({"order": list(new.rows)} if list(old.rows) != list(new.rows) else {}),
    }


def _event(kind: str, position: str, data: dict[str, Any]) -> str:
    return f"id: {position}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
