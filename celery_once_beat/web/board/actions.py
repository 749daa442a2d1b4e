"""The pages on which somebody orders something, and the log of orders. They are forms: they need no script.

A form carries a CSRF token, which is made from a secret of this process, a cookie of the browser's and who asks. The
guard has seen that it comes from a page of the board, and from somebody who may act.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from celery_once_beat.client import OrderedBy
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, VersionConflictError
from celery_once_beat.identity import digest
from celery_once_beat.windows import format_instant, parse_instant
from celery_once_beat.wording import read_time, shown, some

from . import words
from .choice import ROWS, choice_of
from .desk import Desk
from .feed import Feed
from .forms import answer_page, check_form, done_of, keep_name, seal
from .guard import Visitor, read_form
from .page import Line

#: What can be ordered of an entry: a method each.
_ORDERS = ("run", "backfill", "republish", "pause", "resume", "abandon", "edit")
#: Most bytes of a form; the longest definition fits.
_MOST_FORM = 256 * 1024
#: Most entries that a search names.
_MOST_FOUND = 100
#: So many starts of a backfill are named before it is confirmed.
_NAMED = 20
#: So many entries are named of those to which one thing was done.
_MOST_NAMED = 5
#: Most records of the log of orders on a page, newest first.
_MOST_RECORDS = 200

#: What can be ordered of several entries at once, or of a window in its story.
_ORDERS_OF_ROWS = ("run", "republish", "pause", "resume", "abandon")
#: A story that is open on the board.
_STORY = re.compile(r"(window/\w+/[\w:.-]+|entry/\w+)", re.ASCII)

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
        values: dict[str, Any] = {"wanted": wanted, "found": found[:_MOST_FOUND], "more": len(found) > _MOST_FOUND}
        try:
            log, trouble = await asyncio.to_thread(self._desk.log), ""
        except OnceError as exc:
            log, trouble = [], self._why(exc)
        values |= {"log": log[:_MOST_RECORDS], "trouble": trouble}
        return self._answer("orders.html", request, root="", **values)

    async def entry(self, request: Request) -> Response:
        """Show what can be ordered of one entry."""
        _acting(request)
        return await self._show(request, await self._line(request), done=done_of(request))

    def _answer(self, template: str, request: Request, status: int = 200, **values: Any) -> Response:
        return answer_page(self._templates, template, request, status, zone=self._zone, **values)

    async def _show(self, request: Request, line: Line, status: int = 200, **values: Any) -> Response:
        try:
            facts = await asyncio.to_thread(self._desk.facts, line.entry)
        except OnceError as exc:
            raise HTTPException(503, self._why(exc)) from exc
        values = {"done": "", "wrong": "", "failed": "", **values, "given": defaultdict(str, values.get("given", {}))}
        return self._answer(
            "order.html",
            request,
            status,
            root="../" if request.method == "GET" else "../../",
            line=line,
            facts=facts,
            log=facts["log"][:_MOST_RECORDS],
            **values,
        )

    def _why(self, error: OnceError) -> str:
        return words.plain(words.in_zone(str(error), self._zone), 400)

    async def _line(self, request: Request) -> Line:
        page = await self._feed.fresh()
        line = page.lines.get(request.path_params["line"])
        if line is None:
            raise HTTPException(404, "No such entry is on the board")
        return line

    # -- orders -----------------------------------------------------------------------------------------------

    async def order(self, request: Request) -> Response:
        """Carry out what a form orders, and show the result."""
        visitor, line = _acting(request), await self._line(request)
        order = request.path_params["order"]
        if order not in _ORDERS:
            raise HTTPException(404, "There is no such order")
        fields = await self._read(request)
        try:
            by = _ordered_by(visitor, fields)
            done = await asyncio.to_thread(self._carry_out, order, line, by, fields)
        except OnceError as exc:
            form = {name: values[0] for name, values in fields.items() if name != "csrf"}
            again = {"given": form, "wrong": self._why(exc)}
            return await self._show(request, line, _status(exc), failed=order, **again)
        if isinstance(done, dict):
            return self._answer("backfill.html", request, root="../../", line=line, note=by.note, **done)
        return self._redirect(request, f"../{line.id}?", done, fields)

    async def order_rows(self, request: Request) -> Response:
        """Carry out what was ordered of entries that were picked, or in a story, and lead back to what was shown."""
        visitor, page, fields = _acting(request), await self._feed.fresh(), await self._read(request)
        order, picked = _only(fields, "order"), fields.get("line", ())[:ROWS]
        if order not in _ORDERS_OF_ROWS:
            raise HTTPException(404, "There is no such order")
        lines = [page.lines[line] for line in dict.fromkeys(picked) if line in page.lines]
        try:
            by = _ordered_by(visitor, fields)
            done = await asyncio.to_thread(self._carry_out_all, order, lines, by, fields)
        except OnceError as exc:
            done = f"✕ Nothing was ordered: {self._why(exc)}"
        query, _, story = _only(fields, "view").partition("#")
        view = choice_of(query)
        address = view.address(number=view.number)
        back = f"./{address}&" if address.startswith("?") else f"{address}?"
        return self._redirect(request, back, done, fields, story if _STORY.fullmatch(story) else "")

    def _carry_out_all(self, order: str, lines: Sequence[Line], by: OrderedBy, fields: Fields) -> str:
        """Return what was done of each, a line each; one that is refused (✕) keeps none of the others back."""
        done: dict[tuple[str, str], list[str]] = {}
        for line in lines:
            try:
                came = "✓", str(self._carry_out(order, line, by, fields))
            except OnceError as exc:
                came = "✕", f"not done: {self._why(exc)}"
            done.setdefault(came, []).append(line.name)
        said = [f"{mark} {some(names, _MOST_NAMED)}: {what}" for (mark, what), names in done.items()]
        return "\n".join(said) or "✕ No entry was picked."

    def _carry_out(self, order: str, line: Line, by: OrderedBy, fields: Fields) -> Done:
        carry_out: Callable[[Line, OrderedBy, Fields], Done] = getattr(self, f"_{order}")
        return carry_out(line, by, fields)

    async def _read(self, request: Request) -> Fields:
        fields = await read_form(request, _MOST_FORM)
        check_form(request, _only(fields, "csrf"))
        return fields

    def _redirect(self, request: Request, address: str, done: str, fields: Fields, story: str = "") -> Response:
        query = urlencode({"done": done, "seal": seal(request, done)})
        answer = RedirectResponse(f"{address}{query}" + (f"#{story}" if story else ""), 303)
        if name := _name_in(fields):
            keep_name(answer, request, name)
        return answer

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
            "agreed_by": _only(fields, "by"),
            "changed": bool(agreed),
            "named": starts[:_NAMED],
            "since": since,
            "until": until,
            "again": again,
        }

    def _republish(self, line: Line, by: OrderedBy, _: Fields) -> Done:
        starts = [window.start for window in self._desk.facts(line.entry)["open"]]
        again = self._desk.orders.republish(line.entry, starts, by)
        if not again:
            raise SettingError("no window is open whose message is out, and which no worker has begun")
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
        if not gone:
            raise SettingError("they run, and are left alone" if left else "none of them is open any more")
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
    name = _name_in(fields)
    if not name:
        raise SettingError("Your name: found nothing, expected who orders it")
    return OrderedBy(f"{name} (by token)", note)


def _name_in(fields: Fields) -> str:
    return " ".join(_only(fields, "by").split())


def _only(fields: Fields, name: str) -> str:
    return fields.get(name, ("",))[0]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SettingError(f"{name}: found {shown(text)}, expected JSON: {exc}") from exc


def _status(error: OnceError) -> int:
    if isinstance(error, StoreUnavailableError):
        return 503
    return 409 if isinstance(error, VersionConflictError) else 422
