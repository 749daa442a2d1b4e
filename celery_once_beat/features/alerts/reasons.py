"""Why a window isn't done: how it stands, in a word, and a sentence that says since when. Pure."""

from __future__ import annotations

from datetime import datetime

from celery_once_beat.identity import host_of
from celery_once_beat.lookup import WindowSeen
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import EntryAccount, OpenWindow
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import printable, short, shown

from .store import Ended

#: Who pauses an entry whose windows fail.
BY_FAILURES = "pause_after_failures"


def why_late(window: WindowSeen | None, account: EntryAccount | None) -> tuple[str, str]:
    """Return the state of a window that isn't done, and why: a name of ``outcomes.STATES``, and a text on one line."""
    if window is not None and window.past is not None:
        past = window.past
        return past.outcome, how_ended(Ended(past.outcome, past.closed, window.failure))
    if window is None or window.open is None or account is None:  # the store lost it
        return "published", "nothing more is known of it"
    why = _why_open(window, window.open)
    if account.paused:
        by = f" by {printable(account.paused_by)}" if account.paused_by else ""
        note = f": {printable(account.paused_for)}" if account.paused_for else ""
        why += f"; the entry is paused{by}{note}"
    return "buffered" if window.open.waits else window.state, why


def how_ended(ended: Ended) -> str:
    """Say how a window ended that isn't done, and when."""
    return f"{ended.outcome} at {_at(ended.at)}: {printable(end_words(ended))}"


def end_words(ended: Ended) -> str:
    """Say why a window ended without being done: its failure's text, else what its outcome means."""
    outcome = OUTCOMES.get(ended.outcome)
    return ended.failure or (outcome.meaning if outcome else ended.outcome)


def _why_open(seen: WindowSeen, window: OpenWindow) -> str:
    if window.state == "waits_slot":
        return f"waits for a slot of the limit {shown(seen.limit)}"
    if window.waits and seen.waits_for is not None:
        return f"waits for the window of {_at(seen.waits_for)}"
    if window.waits or window.begun is None:
        why = "it is its turn" if window.waits else f"claimed at {_at(window.claimed)}"
        where = f": it is in the queue {shown(window.queue)}" if window.queue else ""
        return f"{why}, and no worker has begun it" + (_by_holder(window) or where)
    return _why_begun(seen, window, f"{_at(window.begun)}{_by_whom(window)}")


def _why_begun(seen: WindowSeen, window: OpenWindow, began: str) -> str:
    if seen.state == "running":
        return f"running since {began}"
    if not window.given_back:
        return f"began {began}, and its worker doesn't renew its lease"
    if window.holder is not None:
        why = f"is to run again, began {began}{_by_holder(window)}"
    elif seen.state == "waiting" and window.retry:
        why = f"waits for retry {window.retry}"
    elif seen.state == "overdue" or seen.deadline is None:
        why = f"is to run again, began {began}"
    else:
        why = f"runs again by {_at(seen.deadline)}, began {began}"
    return why + (f", after {printable(seen.failure)}" if seen.failure else "")


def _by_holder(window: OpenWindow) -> str:
    return f": the worker {short(window.holder.worker)} has reserved it" if window.holder else ""


def _by_whom(window: OpenWindow) -> str:
    on = f" on {short(host_of(window.owner))}" if window.owner else ""
    return on + (f", attempt {window.attempts}" if window.attempts > 1 else "")


def _at(instant: datetime) -> str:
    return format_instant(instant.replace(microsecond=0)).replace(".000000", "")
