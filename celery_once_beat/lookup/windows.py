"""Make what is shown of an entry and its windows from what the store has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
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
    words = {} if isinstance(failures, OnceError) else codec.as_mapping(failures)  # for people only

    def see(start: datetime, state: str, *, ordered: bool, **more: Any) -> WindowSeen:
        text, done_by = format_instant(start), None if ordered or known is None else _done_by(start, known)
        unmade = state == "failed" and more["past"].begun is None
        why = words.get(text, "its message couldn't be made or read: the logs say why" if unmade else "")
        return WindowSeen(start, state, refused=refused.get(text, 0), failure=why, done_by=done_by, **more)

    windows = [see(each.start, each.outcome, ordered=each.ordered, past=each) for each in past]
    if known is not None and known.open:
        first = _first_in_line(known)
        for start, window in known.open.items():
            more: dict[str, Any] = {"open": window, "ordered": window.backfill}
            if window.state == "waits_slot":
                more["limit"] = known.limit
            elif window.waits and start != first:
                more["waits_for"] = first
            windows.append(see(start, _state(window, overdue=start in overdue), **more))
    windows.sort(key=lambda window: window.start, reverse=True)
    return EntrySeen(name, known, windows, overdue, trouble)


def readable(texts: Iterable[str]) -> Iterator[Past]:
    """Yield the records of a history that can be read."""
    for text in texts:
        with suppress(ValueError, OverflowError):  # the overview names it
            yield read_past(text)


def _first_in_line(account: EntryAccount) -> datetime | None:
    """Return the window for which others wait: the one that has the turn, else the first that waits; None: none does.

    What goes first is ordered as by ``goes_before`` in ``features/admission/lua/line.lua``.
    """
    holder = account.open.get(account.turn) if account.turn else None
    if holder is not None and holder.state in ("plain", "retry"):
        return account.turn

    def place(start: datetime) -> tuple[object, ...]:
        each = account.open[start]
        return each.state != "waits_slot", each.begun is None and not each.backfill, start

    return min((start for start, each in account.open.items() if each.waits), key=place, default=None)


def _done_by(start: datetime, account: EntryAccount) -> datetime | None:
    """Return by when a window is to be done that nobody ordered."""
    try:
        return None if account.deadline is None else start + timedelta(seconds=account.deadline)
    except OverflowError:  # at the calendar's end; a foreign record may say anything
        return None


def _state(window: OpenWindow, *, overdue: bool) -> str:
    if overdue:
        return "overdue"
    if window.waits:
        return "buffered"
    if window.given_back:
        return "waiting"
    return "published" if window.begun is None else "running"
