"""Why a window isn't done: how it stands, in a word, and a sentence that says since when. Pure."""

from __future__ import annotations

from datetime import datetime

from celery_once_beat.identity import host_of
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import OpenWindow, Tell
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import printable, short, shown


def why_late(tell: Tell, queue: str | None, now: datetime) -> tuple[str, str]:
    """Return the state of a window that isn't done, and why: a name of ``outcomes.STATES``, and a text on one line.

    ``queue`` is where its messages go; None: that isn't known. ``now`` is the server's, aware UTC.
    """
    state, why = _closed(tell) if tell.ended is not None else _open(tell, queue, now)
    if tell.paused and tell.ended is None:
        by = f" by {printable(tell.paused_by)}" if tell.paused_by else ""
        note = f": {printable(tell.paused_for)}" if tell.paused_for else ""
        why += f"; the entry is paused{by}{note}"
    return state, why


def end_words(tell: Tell) -> str:
    """Say how a window ended that isn't done: what its failure said, else what its outcome means."""
    assert tell.ended is not None
    outcome = OUTCOMES.get(tell.ended.outcome)
    return tell.ended.failure or tell.failure or (outcome.meaning if outcome else tell.ended.outcome)


def _closed(tell: Tell) -> tuple[str, str]:
    assert tell.ended is not None
    return tell.ended.outcome, f"{tell.ended.outcome} at {_at(tell.ended.at)}: {printable(end_words(tell))}"


def _open(tell: Tell, queue: str | None, now: datetime) -> tuple[str, str]:
    window = tell.open
    if window is None:  # the store lost its account
        return "published", "nothing more is known of it"
    failed = f", after {printable(tell.failure)}" if tell.failure else ""
    if tell.run == "running":
        return "running", f"running since {_began(window)}"
    overdue = tell.deadline is not None and tell.deadline <= now
    if window.waits or (window.begun is None and tell.run != "waiting"):
        return _unbegun(tell, window, queue, overdue=overdue)
    if tell.run == "waiting":
        return "waiting", f"waits for retry {tell.retry}{failed}"
    if not window.given_back:
        return "overdue" if overdue else "running", f"began {_began(window)}, and its worker doesn't renew its lease"
    again = "is to run again" if overdue or tell.deadline is None else f"runs again by {_at(tell.deadline)}"
    return "overdue" if overdue else "waiting", f"{again}, began {_began(window)}{failed}"


def _unbegun(tell: Tell, window: OpenWindow, queue: str | None, *, overdue: bool) -> tuple[str, str]:
    if window.waits:
        return "buffered", _waits(tell, window, queue)
    words = f"claimed at {_at(window.claimed)}, {_unconsumed(tell, queue)}"
    return "overdue" if overdue else "published", words


def _waits(tell: Tell, window: OpenWindow, queue: str | None) -> str:
    if window.waits == "place":
        return f"waits for a place of the limit {shown(tell.limit)}"
    if tell.waits_for is not None:
        return f"waits for the window of {_at(tell.waits_for)}"
    return f"it is its turn, {_unconsumed(tell, queue)}"


def _unconsumed(tell: Tell, queue: str | None) -> str:
    where = f" the queue {shown(queue)}" if queue else " its queue"
    return "and no worker has begun it" + (f": no worker consumes{where}" if tell.unconsumed else "")


def _began(window: OpenWindow) -> str:
    assert window.begun is not None
    on = f" on {short(host_of(window.owner))}" if window.owner else ""
    attempt = f", attempt {window.attempts}" if window.attempts > 1 else ""
    return f"{_at(window.begun)}{on}{attempt}"


def _at(instant: datetime) -> str:
    return format_instant(instant.replace(microsecond=0)).replace(".000000", "")
