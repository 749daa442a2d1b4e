"""What the board answers: the page, a window's story, the news, metrics, and its own few files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import partial
from importlib.resources import files
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_once_beat.errors import OnceError
from celery_once_beat.features.keyed.store import read_children
from celery_once_beat.outcomes import STATES
from celery_once_beat.status import View, WindowStatus
from celery_once_beat.windows import format_instant, parse_instant
from celery_once_beat.wording import span

from . import words
from .actions import Actions, answer_page, find_line
from .axis import ZOOMS
from .choice import ALL, GROUPS, ROWS, SORTS, Choice
from .desk import Desk
from .feed import Feed
from .grid import Grid, Shown, zone_query
from .guard import Access, Guard, Visitor
from .page import ALWAYS, LOOKS, Line, Page

try:
    from celery_once_beat.status.metrics import OnceCollector
except ModuleNotFoundError as exc:
    if exc.name != "prometheus_client":
        raise
    OnceCollector = None  # type: ignore[assignment, misc]  # without the extra there is no /metrics

#: Viewers at a time to whom changes are sent; others see the page as it was when they opened it.
MOST_VIEWERS = 64
#: Seconds within which a viewer has to take what it is sent.
_PATIENCE = 20.0

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def make_site(view: View, access: Access, closing: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the board of what ``view`` sees as an ASGI application; ``closing`` says that the server wants to end."""
    zone = view.app.timezone
    feed = Feed(view.snapshot, zone)
    site = _Site(feed, view, closing)
    compressed = [Middleware(GZipMiddleware, compresslevel=4)]
    answers = Starlette(
        routes=[
            Route("/", site.page, middleware=compressed),
            Route("/window/{line}/{start}", site.window),
            Route("/entry/{line}", site.entry),
            Route("/events", site.events),
            Route("/metrics", site.metrics, middleware=compressed),
            Route("/static/{name}", site.static),
            *(Actions(Desk(view), feed, site.templates, zone).routes if access.actions else []),
        ],
        exception_handlers={HTTPException: site.error, 500: site.error},
    )
    answers.router.redirect_slashes = False  # to an absolute address, with a host that the request names
    return Guard(answers, access)


def make_templates(title: str, zone: tzinfo) -> Environment:
    """Return the board's templates, and what all of them know."""
    made = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    made.globals.update(title=title, own_zone=str(zone), states=STATES, looks=LOOKS, always=ALWAYS, most=ROWS)
    made.globals.update(zooms=ZOOMS.values(), groups=GROUPS, sorts=SORTS, every_group=(ALL,))
    made.filters.update(plain=words.plain, said=words.said, state=words.state_of, in_short=words.in_short)
    made.filters.update(instant=format_instant, moment=words.moment, stretch=words.stretch, span=span, quoted=quote)
    made.filters["in_zone"] = lambda text, other=None: words.in_zone(text, other or zone)
    made.filters["day_and_time"] = lambda instant, other=None: words.day_and_time(instant, other or zone)
    return made


class _Site:
    def __init__(self, feed: Feed, view: View, closing: Callable[[], bool]) -> None:
        self._feed = feed
        self._collector = None if OnceCollector is None else OnceCollector()
        self._zone: tzinfo = view.app.timezone
        self._settings = view.settings
        self._store = view.store
        self._closing = closing
        self.templates = templates = make_templates(words.plain(view.app.main or "celery"), self._zone)
        self._html = partial(answer_page, templates)
        self._grid = Grid(templates, self._zone)
        static = files(__package__) / "static"
        self._static = {file.name: file.read_bytes() for file in static.iterdir() if file.is_file()}
        self._static["columns.css"] = templates.get_template("columns.css").render().encode()

    def _story(self, request: Request, template: str, page: Page, line: Line, **values: Any) -> Response:
        chosen = _choice(request).zone
        coming = words.next_start(line.status, chosen or self._zone, page.moment, page.cause)
        values |= {"zone": chosen or self._zone, "query": zone_query(chosen), "next": coming}
        return self._html(template, request, page=page, line=line, **values)

    async def page(self, request: Request) -> Response:
        choice = _choice(request)
        shown = self._grid.show(await self._feed.fresh(), choice)
        return self._html("board.html", request, page=shown.page, shown=shown, choice=choice)

    async def window(self, request: Request) -> Response:
        page, line = await find_line(self._feed, request)
        at = line.position(request.path_params["start"])
        if at is None:
            raise HTTPException(404, "No such window is on the board: its entry has newer ones")
        window = WindowStatus.of(line.windows[at], line.entry, self._settings.key_prefix)
        children: list[tuple[str, str]] = []
        with suppress(OnceError):
            children = await asyncio.to_thread(read_children, self._store, line.entry, window.start)
        templates, of_window = self._settings.board_links, words.fields_of(window, line.entry, line.status.task)
        links = [*words.links_of(templates, of_window, window.attempts)]
        of_them = [(*child, [*words.links_of(templates, words.fields_of_child(*child))]) for child in children]
        return self._story(request, "window.html", page, line, window=window, at=at, links=links, children=of_them)

    async def entry(self, request: Request) -> Response:
        page, line = await find_line(self._feed, request)
        since, until = _instant(request, "since"), _instant(request, "until")
        windows = [
            WindowStatus.of(seen)
            for seen in line.windows
            if (since is None or seen.start >= since) and (until is None or seen.start < until)
        ]
        return self._story(request, "entry.html", page, line, windows=windows, since=since, until=until)

    async def events(self, request: Request) -> Response:
        headers = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(headers=headers)
        if self._feed.viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} look already", {"retry-after": "30"})
        position = request.headers.get("last-event-id") or request.query_params.get("since", "")
        choice = _choice(request)

        def show(page: Page) -> Shown:
            return self._grid.show(page, choice)

        return _News(self._feed, self._feed.follow(self._grid.at(position), show, self._closing), headers)

    async def metrics(self, request: Request) -> Response:
        if self._collector is None:
            raise HTTPException(404, "For metrics install celery-once-beat[metrics]")
        await self._feed.fresh()
        media_type, text = self._collector.expose(self._feed.report, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": media_type})

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def error(self, request: Request, exc: Exception) -> Response:
        status, text, headers = 500, "The board failed: its log says why", None
        if isinstance(exc, HTTPException):
            status, text, headers = exc.status_code, exc.detail, exc.headers
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(f"{text}.\n", status, headers)
        answer = self._html("error.html", request, status, text=text)
        answer.headers.update(headers or {})
        return answer


class _News(StreamingResponse):
    """The stream of one viewer; ends when it goes, takes nothing for too long, or what it is sent ends."""

    def __init__(self, feed: Feed, news: AsyncIterator[str], headers: dict[str, str]) -> None:
        super().__init__(news, headers=headers)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the viewer goes."""

        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), _PATIENCE)

        self._feed.viewers += 1
        try:
            with suppress(asyncio.TimeoutError, ClientDisconnect):
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._feed.viewers -= 1


def _choice(request: Request) -> Choice:
    return replace(Choice.of(request.query_params), acts=Visitor.of(request.scope).acts)


def _instant(request: Request, name: str) -> datetime | None:
    try:
        return parse_instant(request.query_params[name])
    except (KeyError, ValueError):
        return None
