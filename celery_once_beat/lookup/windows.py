"""Make what is shown of an entry and its windows from what the store has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery_once_beat.errors import OnceError
from celery_once_beat.store import EntryAccount, OpenWindow, codec
from celery_once_beat.windows import format_instant

from .reading import read_past
from .seen import EntrySeen, Past, WindowSeen


def make_entry(
    name: str,
    account: EntryAccount | OnceError | None,
    replies: Sequence[Any],
    overdue: dict[datetime, datetime],
    trouble: str,
) -> EntrySeen:
    """Make it of its account, what is ``overdue``, and its history, refused copies and texts of failures."""
    history, refused_reply, failures = replies
    past, refused = [], {}
    errors = [reply for reply in (account, history, refused_reply) if isinstance(reply, OnceError)]
    known = None if errors or isinstance(account, OnceError) else account
    if errors:
        trouble = str(errors[0])
        history = [] if isinstance(history, OnceError) else history
    else:
        try:
            refused = {start: codec.whole(count) for start, count in codec.as_mapping(refused_reply).items()}
        except ValueError as exc:
            trouble = f"the refused copies of {name!r} can't be read: {exc}"
    for text in history:
        try:
            past.append(read_past(text))
        except (ValueError, OverflowError) as exc:
            trouble = f"the history of {name!r} can't be read, a record of it: {exc}"
    windows = [WindowSeen(p.start, p.outcome, past=p) for p in past]
    if known is not None:
        windows += [
            WindowSeen(start, _state(window, overdue=start in overdue), open=window)
            for start, window in known.open.items()
        ]
        windows = _with_deadlines(_with_reasons(windows, known), known)
    windows.sort(key=lambda window: window.start, reverse=True)
    said = {} if isinstance(failures, OnceError) else codec.as_mapping(failures)  # for people only
    words = said if any(map(_may_have_failed, windows)) else {}
    counted = []
    for window in windows:
        text = format_instant(window.start)
        counted.append(replace(window, refused=refused.get(text, 0), failure=words.get(text, "")))
    return EntrySeen(name, known, counted, overdue, trouble)


def readable(texts: Iterable[str]) -> Iterator[Past]:
    """Yield the records of a history that can be read."""
    for text in texts:
        with suppress(ValueError, OverflowError):  # the overview names it
            yield read_past(text)


def _may_have_failed(window: WindowSeen) -> bool:
    """Whether the text of a failure may be kept for this window."""
    return window.state in ("failed", "abandoned") or (window.open is not None and window.open.begun is not None)


def _with_reasons(windows: list[WindowSeen], account: EntryAccount) -> list[WindowSeen]:
    """Add what each waits for: a slot of a limit, or the window that has the turn, else the first in line.

    What goes first is ordered as by ``goes_before`` in ``features/admission/lua/line.lua``.
    """
    waiting = {start: each for start, each in account.open.items() if each.waits}
    if not waiting:
        return windows

    def place(start: datetime) -> tuple[object, ...]:
        each = waiting[start]
        return each.state != "waits_slot", each.begun is None and not each.backfill, start

    holder = account.open.get(account.turn) if account.turn else None
    first = account.turn if holder is not None and holder.state in ("held", "retry") else min(waiting, key=place)

    def with_reason(window: WindowSeen) -> WindowSeen:
        if window.start not in waiting:
            return window
        if waiting[window.start].state == "waits_slot":
            return replace(window, limit=account.limit)
        return window if first == window.start else replace(window, waits_for=first)

    return [with_reason(window) for window in windows]


def _with_deadlines(windows: list[WindowSeen], account: EntryAccount) -> list[WindowSeen]:
    """Add when windows are to be done; one that was ordered has no such time."""
    if account.deadline is None:
        return windows
    span = timedelta(seconds=account.deadline)

    def with_deadline(window: WindowSeen) -> WindowSeen:
        ordered = window.open.backfill if window.open else window.past is not None and window.past.ordered
        try:
            return window if ordered else replace(window, done_by=window.start + span)
        except OverflowError:  # at the calendar's end; a foreign record may say anything
            return window

    return [with_deadline(window) for window in windows]


def _state(window: OpenWindow, *, overdue: bool) -> str:
    if overdue:
        return "overdue"
    if window.waits:
        return "buffered"
    if window.given_back:
        return "waiting"
    return "published" if window.begun is None else "running"
