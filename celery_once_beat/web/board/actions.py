"""The pages on which somebody orders something, and the log of orders. They are forms: they need no script.

A form carries a CSRF token, which is made from a secret of this process, a cookie of the browser's and who asks. The
guard has seen that it comes from a page of the board, and from somebody who may act.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from celery_once_beat.client import OrderedBy
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, VersionConflictError
from celery_once_beat.wording import some

from . import words
from .choice import ROWS, Choice
from .desk import Desk, Fields, only
from .feed import Feed
from .guard import FORM_HEADERS, Visitor, read_form, root_of
from .page import Line, Page

#: Most bytes of a form; the longest definition fits.
_MOST_FORM = 256 * 1024
#: So many entries are named of those to which one thing was done.
_MOST_NAMED = 5
#: Most characters of the view to which an order leads back.
_LONGEST_VIEW = 20_000

#: What can be ordered of several entries at once, or of a window in its story.
_ORDERS_OF_ROWS = ("run", "republish", "pause", "resume", "abandon")
#: A story that is open on the board.
_STORY = re.compile(r"(window/\w+/[\w:.-]+|entry/\w+)", re.ASCII)

_COOKIE, _NAME = "once_board_csrf", "once_board_by"
_LONGEST_NAME = 180
#: What only this process knows: so nobody else makes a form's token, or a link that says what was done.
_SECRET = secrets.token_bytes(32)


class Actions:
    """Answers under ``orders``."""

    def __init__(self, desk: Desk, feed: Feed, templates: Environment, zone: Any) -> None:
        self._desk = desk
        self._feed = feed
        self._zone = zone
        self._answer = partial(answer_page, templates, zone=zone)

    @property
    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/orders", self.log),
            Route("/orders", self.order_rows, methods=["POST"]),
            Route("/orders/{line}", self.entry),
            Route("/orders/{line}/{order}", self.order, methods=["POST"]),
        ]

    # -- pages ------------------------------------------------------------------------------------------------

    async def log(self, request: Request) -> Response:
        """Show who ordered what of late, and find an entry."""
        _acting(request)
        wanted = request.query_params.get("entry", "")[:200]
        page = await self._feed.fresh()
        found = [line for line in page.lines.values() if wanted.lower() in line.name.lower()] if wanted else []
        try:
            log, trouble = await asyncio.to_thread(self._desk.log), ""
        except OnceError as exc:
            log, trouble = [], self._why(exc)
        return self._answer("orders.html", request, wanted=wanted, found=found, log=log, trouble=trouble)

    async def entry(self, request: Request) -> Response:
        """Show what can be ordered of one entry."""
        _acting(request)
        _, line = await find_line(self._feed, request)
        return await self._show(request, line)

    async def _show(self, request: Request, line: Line, status: int = 200, **failed: Any) -> Response:
        try:
            facts = await asyncio.to_thread(self._desk.facts, line.entry)
        except OnceError as exc:
            raise HTTPException(503, self._why(exc)) from exc
        values = {"failed": "", "wrong": "", "given": defaultdict(str), **failed}
        return self._answer("order.html", request, status, line=line, facts=facts, **values)

    def _why(self, error: OnceError) -> str:
        return words.plain(words.in_zone(str(error), self._zone), 400)

    # -- orders -----------------------------------------------------------------------------------------------

    async def order(self, request: Request) -> Response:
        """Carry out what a form orders, and show the result."""
        visitor, (_, line) = _acting(request), await find_line(self._feed, request)
        order = request.path_params["order"]
        if order not in self._desk.orders:
            raise HTTPException(404, "There is no such order")
        fields = await self._read(request)
        try:
            by = _ordered_by(visitor, fields)
            done = await asyncio.to_thread(self._desk.orders[order], line.entry, by, fields)
        except OnceError as exc:
            given = defaultdict(str, {name: values[0] for name, values in fields.items()})
            return await self._show(request, line, _status(exc), failed=order, given=given, wrong=self._why(exc))
        if isinstance(done, dict):
            return self._answer("backfill.html", request, line=line, **done)
        return self._redirect(request, f"../{line.id}?", done, fields)

    async def order_rows(self, request: Request) -> Response:
        """Carry out what was ordered of entries that were picked, or in a story, and lead back to what was shown."""
        visitor, page, fields = _acting(request), await self._feed.fresh(), await self._read(request)
        order, picked = only(fields, "order"), fields.get("line", ())[:ROWS]
        if order not in _ORDERS_OF_ROWS:
            raise HTTPException(404, "There is no such order")
        lines = [page.lines[line] for line in dict.fromkeys(picked) if line in page.lines]
        try:
            by = _ordered_by(visitor, fields)
            done = await asyncio.to_thread(self._order_all, order, lines, by, fields)
        except OnceError as exc:
            done = f"✕ Nothing was ordered: {self._why(exc)}"
        query, _, story = only(fields, "view").partition("#")
        view = Choice.of(QueryParams(query.removeprefix("?")[:_LONGEST_VIEW]))
        address = view.address(number=view.number)
        back = f"./{address}&" if address.startswith("?") else f"{address}?"
        return self._redirect(request, back, done, fields, story if _STORY.fullmatch(story) else "")

    def _order_all(self, order: str, lines: Sequence[Line], by: OrderedBy, fields: Fields) -> str:
        """Return what was done of each, a line each; one that is refused (✕) keeps none of the others back."""
        done: dict[tuple[str, str], list[str]] = defaultdict(list)
        for line in lines:
            try:
                came = "✓", str(self._desk.orders[order](line.entry, by, fields))
            except OnceError as exc:
                came = "✕", f"not done: {self._why(exc)}"
            done[came].append(line.name)
        said = [f"{mark} {some(names, _MOST_NAMED)}: {what}" for (mark, what), names in done.items()]
        return "\n".join(said) or "✕ No entry was picked."

    async def _read(self, request: Request) -> Fields:
        fields = await read_form(request, _MOST_FORM)
        _check_form(request, only(fields, "csrf"))
        return fields

    def _redirect(self, request: Request, address: str, done: str, fields: Fields, story: str = "") -> Response:
        query = urlencode({"done": done, "seal": _seal(request, done)})
        answer = RedirectResponse(f"{address}{query}" + (f"#{story}" if story else ""), 303)
        if name := _name_in(fields):
            _keep(answer, request, _NAME, quote(name[:_LONGEST_NAME]))  # for its next forms
        return answer


async def find_line(feed: Feed, request: Request) -> tuple[Page, Line]:
    """Return the page, and the line of it that an address names; raises HTTPException."""
    page = await feed.fresh()
    line = page.lines.get(request.path_params["line"])
    if line is None:
        raise HTTPException(404, "No such entry is on the board")
    return page, line


def _acting(request: Request) -> Visitor:
    visitor = Visitor.of(request.scope)
    if not visitor.acts:
        raise HTTPException(403, "You may look at the board, and not act")
    return visitor


def _ordered_by(visitor: Visitor, fields: Fields) -> OrderedBy:
    """Return who orders; visitors with the token give their own name, and the log shows that it is one."""
    note = " ".join(only(fields, "note").split())
    if visitor.name:
        return OrderedBy(visitor.name, note)
    name = _name_in(fields)
    if not name:
        raise SettingError("Your name: found nothing, expected who orders it")
    return OrderedBy(f"{name} (by token)", note)


def _status(error: OnceError) -> int:
    if isinstance(error, StoreUnavailableError):
        return 503
    return 409 if isinstance(error, VersionConflictError) else 422


def _name_in(fields: Fields) -> str:
    return " ".join(only(fields, "by").split())


# -- forms ------------------------------------------------------------------------------------------------------


def answer_page(templates: Environment, template: str, request: Request, status: int = 200, **values: Any) -> Response:
    """Render a page. Who may act gets one with forms; a browser that has no cookie for them gets one."""
    page, visitor = templates.get_template(template), Visitor.of(request.scope)
    values |= {"root": root_of(request), "done": _done_of(request)}
    if not visitor.acts:
        return HTMLResponse(page.render(values, acts=False), status)
    cookie = _cookie(request)
    new = "" if cookie else secrets.token_hex(16)
    by = unquote(request.cookies.get(_NAME, ""))[:_LONGEST_NAME]
    text = page.render(values, acts=True, visitor=visitor, csrf=_csrf(new or cookie, visitor), by=by)
    answer = HTMLResponse(text, status, FORM_HEADERS)
    if new:
        _keep(answer, request, _COOKIE, new)
    return answer


def _check_form(request: Request, csrf: str) -> None:
    """Raise HTTPException for a form that this board didn't give to this browser and visitor."""
    cookie = _cookie(request)
    if not cookie or not hmac.compare_digest(csrf.encode(), _csrf(cookie, Visitor.of(request.scope)).encode()):
        raise HTTPException(403, "This form isn't of your session with the board: open its page again")


def _seal(request: Request, done: str) -> str:
    """Return what only this browser and the board can write below what was done."""
    return _sign("done", _cookie(request) or secrets.token_hex(), request.path_params.get("line", ""), done)


def _done_of(request: Request) -> str:
    """Return what an address says was done; '' for a link from elsewhere, which must not say so."""
    done, given = request.query_params.get("done", ""), request.query_params.get("seal", "")
    return done if hmac.compare_digest(given.encode(), _seal(request, done).encode()) else ""


def _keep(answer: Response, request: Request, name: str, value: str) -> None:
    answer.set_cookie(name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https")


def _cookie(request: Request) -> str:
    """Return the cookie of whom forms are for; '' where the browser has none that the board made."""
    found = request.cookies.get(_COOKIE, "")
    return found if re.fullmatch("[0-9a-f]{32}", found) else ""


def _csrf(cookie: str, visitor: Visitor) -> str:
    return _sign("form", cookie, visitor.name)


def _sign(*words: str) -> str:
    return hmac.new(_SECRET, json.dumps(words).encode(), hashlib.sha256).hexdigest()
