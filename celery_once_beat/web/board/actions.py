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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from celery_once_beat.client import OrderedBy
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, VersionConflictError
from celery_once_beat.identity import digest
from celery_once_beat.windows import format_instant, parse_instant
from celery_once_beat.wording import read_time, shown

from . import words
from .desk import Desk
from .feed import Feed
from .guard import FORM_HEADERS, Visitor, read_form
from .page import Line

_COOKIE = "once_board_csrf"
#: What can be ordered of an entry: a method each.
_ORDERS = ("run", "backfill", "republish", "pause", "resume", "abandon", "edit")
#: Most bytes of a form; the longest definition fits.
_MOST_FORM = 256 * 1024
#: Most entries that a search names.
_MOST_FOUND = 100
#: So many starts of a backfill are named before it is confirmed.
_NAMED = 20
#: Most records of the log of orders on a page, newest first.
_MOST_RECORDS = 200

#: What only this process knows: so nobody else makes a form's token, or a link that says what was done.
_SECRET = secrets.token_bytes(32)

Fields = Mapping[str, Sequence[str]]
#: What came of an order, for people; or the values of a page that asks about it first.
Done = str | dict[str, Any]


class Actions:
    """Answers under ``orders``."""

    def __init__(self, desk: Desk, feed: Feed, templates: Environment, zone: Any) -> None:
        self._desk = desk
        self._feed = feed
        self._templates = templates
        self._zone = zone

    @property
    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/orders", self.log),
            Route("/orders/{line}", self.entry),
            Route("/orders/{line}/{order}", self.order, methods=["POST"]),
        ]

    # -- pages ------------------------------------------------------------------------------------------------

    async def log(self, request: Request) -> Response:
        """Show who ordered what of late, and find an entry."""
        visitor = _acting(request)
        wanted = request.query_params.get("entry", "")[:200]
        page = await self._feed.fresh()
        found = [line for line in page.lines.values() if wanted.lower() in line.name.lower()] if wanted else []
        values: dict[str, Any] = {"wanted": wanted, "found": found[:_MOST_FOUND], "more": len(found) > _MOST_FOUND}
        try:
            log, trouble = await asyncio.to_thread(self._desk.log), ""
        except OnceError as exc:
            log, trouble = [], words.plain(exc, 400)
        values |= {"log": log[:_MOST_RECORDS], "trouble": trouble}
        return self._html("orders.html", request, visitor, root="", **values)

    async def entry(self, request: Request) -> Response:
        """Show what can be ordered of one entry."""
        visitor, line = _acting(request), await self._line(request)
        done = request.query_params.get("done", "")
        # A link from elsewhere must not say that something was done.
        true = hmac.compare_digest(request.query_params.get("seal", "").encode(), _seal(request, done).encode())
        return await self._show(request, visitor, line, done=done if true else "")

    async def _show(self, request: Request, visitor: Visitor, line: Line, status: int = 200, **values: Any) -> Response:
        try:
            facts = await asyncio.to_thread(self._desk.facts, line.entry)
        except OnceError as exc:
            raise HTTPException(503, words.plain(exc, 400)) from exc
        values = {"done": "", "wrong": "", "failed": "", **values, "given": defaultdict(str, values.get("given", {}))}
        return self._html(
            "order.html",
            request,
            visitor,
            status,
            root="../" if request.method == "GET" else "../../",
            line=line,
            facts=facts,
            log=facts["log"][:_MOST_RECORDS],
            **values,
        )

    async def _line(self, request: Request) -> Line:
        page = await self._feed.fresh()
        line = page.lines.get(request.path_params["line"])
        if line is None:
            raise HTTPException(404, "No such entry is on the board")
        return line

    def _html(self, template: str, request: Request, visitor: Visitor, status: int = 200, **values: Any) -> Response:
        """Render a page with forms; a browser that has no cookie for them gets one."""
        cookie = _cookie(request)
        new = "" if cookie else secrets.token_hex(16)
        text = self._templates.get_template(template).render(
            **values, visitor=visitor, zone=self._zone, csrf=_csrf(new or cookie, visitor)
        )
        answer = HTMLResponse(text, status, FORM_HEADERS)
        if new:
            secure = request.url.scheme == "https"
            answer.set_cookie(_COOKIE, new, httponly=True, samesite="strict", secure=secure)
        return answer

    # -- orders -----------------------------------------------------------------------------------------------

    async def order(self, request: Request) -> Response:
        """Carry out what a form orders, and show the result."""
        visitor, line = _acting(request), await self._line(request)
        order = request.path_params["order"]
        if order not in _ORDERS:
            raise HTTPException(404, "There is no such order")
        carry_out: Callable[[Line, OrderedBy, Fields], Done] = getattr(self, f"_{order}")
        fields = await read_form(request, _MOST_FORM)
        cookie = _cookie(request)
        given = _csrf(cookie, visitor)
        if not cookie or not hmac.compare_digest(_only(fields, "csrf").encode(), given.encode()):
            raise HTTPException(403, "This form isn't of your session with the board: open its page again")
        try:
            by = _ordered_by(visitor, fields)
            done = await asyncio.to_thread(carry_out, line, by, fields)
        except OnceError as exc:
            form = {name: values[0] for name, values in fields.items() if name != "csrf"}
            again = {"given": form, "wrong": words.plain(exc, 400)}
            return await self._show(request, visitor, line, _status(exc), failed=order, **again)
        if isinstance(done, dict):
            return self._html("backfill.html", request, visitor, root="../../", line=line, note=by.note, **done)
        return RedirectResponse(f"../{line.id}?{urlencode({'done': done, 'seal': _seal(request, done)})}", 303)

    def _run(self, line: Line, by: OrderedBy, fields: Fields) -> Done:
        self._desk.run(line.entry, by, self._time(fields, "window"))
        return "Ordered 1 window. A beat publishes it at once."

    def _backfill(self, line: Line, by: OrderedBy, fields: Fields) -> Done:
        """First show what it would run. What was shown is run: windows that are due since then aren't."""
        since, until = self._time(fields, "since"), self._time(fields, "until")
        if since is None or until is None:
            raise SettingError("From, To: found nothing, expected times")
        until = min(until, datetime.now(timezone.utc))
        again = bool(_only(fields, "again"))
        starts, skipped = self._desk.plan(line.entry, since, until, again=again)
        #: The same for the same windows.
        known = digest(" ".join(map(format_instant, starts)), 32).hex()
        agreed = _only(fields, "agreed")
        if agreed == known and starts:
            ordered = self._desk.orders.run(line.entry, starts, by, "backfill")
            number = sum(each.task_id is not None for each in ordered)  # some may be open by now
            return f"Ordered {number} windows. Beats publish them at once."
        return {
            "starts": starts,
            "skipped": skipped,
            "digest": known,
            "by": _only(fields, "by"),
            "changed": bool(agreed),
            "named": starts[:_NAMED],
            "since": since,
            "until": until,
            "again": again,
        }

    def _republish(self, line: Line, by: OrderedBy, _: Fields) -> Done:
        starts = [window.start for window in self._desk.facts(line.entry)["open"]]
        again = self._desk.orders.republish(line.entry, starts, by)
        return f"{len(again)} windows are published again. If their messages weren't lost, workers refuse the copies."

    def _pause(self, line: Line, by: OrderedBy, _: Fields) -> Done:
        self._desk.orders.pause(line.entry, by)
        return "Paused. Open windows continue."

    def _resume(self, line: Line, by: OrderedBy, _: Fields) -> Done:
        self._desk.orders.resume(line.entry, by)
        return "Resumed. Windows of the pause are caught up on as the entry's catch_up says."

    def _abandon(self, line: Line, by: OrderedBy, fields: Fields) -> Done:
        try:
            starts = sorted({parse_instant(text) for text in fields.get("start", ())})
        except ValueError as exc:
            raise SettingError(str(exc)) from exc
        if not starts:
            raise SettingError("found no window, expected one or more to give up")
        gone, left = self._desk.orders.abandon(line.entry, starts, by, running=bool(_only(fields, "running")))
        if not gone and not left:
            raise SettingError("none of them is open any more")
        return f"Gave up {len(gone)} windows; left {len(left)}, since they run."

    def _edit(self, line: Line, by: OrderedBy, fields: Fields) -> Done:
        version = _only(fields, "version")
        if not version.isdecimal() or len(version) > 15:  # noqa: PLR2004
            raise SettingError(f"version: found {shown(version)}, expected a number")
        edited = {name: _json(name, _only(fields, name)) for name in ("schedule", "once")}
        self._desk.edit(line.entry, by, edited, int(version))
        return "Changed. It counts from now."

    def _time(self, fields: Fields, name: str) -> datetime | None:
        text = _only(fields, name).strip()
        found = read_time(text, self._zone) if text else None
        if text and found is None:
            raise SettingError(f"found {shown(text)}, expected a time like 2026-11-21T02:00")
        return found


def _acting(request: Request) -> Visitor:
    visitor = Visitor.of(request.scope)
    if not visitor.acts:
        raise HTTPException(403, "You may look at the board, and not act")
    return visitor


def _ordered_by(visitor: Visitor, fields: Fields) -> OrderedBy:
    """Return who orders; visitors with the token give their own name, and the log shows that it is one."""
    note = " ".join(_only(fields, "note").split())
    if visitor.name:
        return OrderedBy(visitor.name, note)
    name = " ".join(_only(fields, "by").split())
    if not name:
        raise SettingError("Your name: found nothing, expected who orders it")
    return OrderedBy(f"{name} (by token)", note)


def _cookie(request: Request) -> str:
    """Return the cookie of whom forms are for; '' where the browser has none that the board made."""
    found = request.cookies.get(_COOKIE, "")
    return found if re.fullmatch("[0-9a-f]{32}", found) else ""


def _csrf(cookie: str, visitor: Visitor) -> str:
    return _sign("form", cookie, visitor.name)


def _sign(*words: str) -> str:
    return hmac.new(_SECRET, json.dumps(words).encode(), hashlib.sha256).hexdigest()


def _only(fields: Fields, name: str) -> str:
    return fields.get(name, ("",))[0]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SettingError(f"{name}: found {shown(text)}, expected JSON: {exc}") from exc


def _seal(request: Request, done: str) -> str:
    """Return what only this browser and the board can write below what was done."""
    return _sign("done", _cookie(request) or secrets.token_hex(), request.path_params["line"], done)


def _status(error: OnceError) -> int:
    if isinstance(error, StoreUnavailableError):
        return 503
    return 409 if isinstance(error, VersionConflictError) else 422
