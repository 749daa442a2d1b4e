"""Serves the metrics alone: for a project that has a board elsewhere, or none.

There is no token: whoever reaches the address reads how the schedule stands, and its names. So it is the loopback's
unless the user names another one. On a loopback it answers only where the Host header says so, too: a page of another
site whose name points here (DNS rebinding) gets nothing. Needs the extras ``dashboard`` and ``metrics``.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from celery_once_beat.status import View
from celery_once_beat.status.metrics import OnceCollector

from .board.feed import Feed
from .loopback import is_loopback, names_this_machine


def make_exporter(view: View, entries: int, address: str) -> ASGIApp:
    """Return what answers /metrics at ``address``, with series of so many entries."""
    feed, collector = Feed(view.snapshot, view.app.timezone), OnceCollector(entries)
    for_this_machine = is_loopback(address)

    async def metrics(request: Request) -> Response:
        if for_this_machine and not names_this_machine(request.headers.get("host")):
            raise HTTPException(400, "Host: expected localhost. --host 0.0.0.0 lets other machines read the metrics.\n")
        await feed.fresh()
        media_type, text = collector.expose(feed.report, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": media_type, "cache-control": "no-store"})

    answers = Starlette(routes=[Route("/metrics", metrics)])
    answers.router.redirect_slashes = False
    return answers
