"""Why a window isn't done: how it stands, in a word, and a sentence that says since when. Pure."""

from __future__ import annotations

from datetime import datetime

from celery_once_beat.identity import host_of
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.store import AlertDetails, OpenWindow
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import printable, short, shown


def why_late(details: AlertDetails, queue: str | None, now: datetime) -> tuple[str, str]:
    """Return the state of a window that isn't done, and why: a name of ``outcomes.STATES``, and a text on one line.

    ``queue`` is where its messages go; None: that isn't known. ``now`` is the server's, aware UTC.
    """
    state, why = _closed(details) if details.ended is not None else _open(details, queue, now)
    if details.paused and details.ended is None:
        by = f" by {printable(details.paused_by)}" if details.paused_by else ""
        note = f": {printable(details.paused_for)}" if details.paused_for else ""
        why += f"; the entry is paused{by}{note}"
    return state, why


def end_words(details: AlertDetails) -> str:
    """Say how a window ended that isn't done: what its failure said, else what its outcome means."""
    assert details.ended is not None
    outcome = OUTCOMES.get(details.ended.outcome)
    return details.ended.failure or details.failure or (outcome.meaning if outcome else details.ended.outcome)


def _closed(details: AlertDetails) -> tuple[str, str]:
    assert details.ended is not None
    return details.ended.outcome, f"{details.ended.outcome} at {_at(details.ended.at)}: {printable(end_words(details))}"


def _open(details: AlertDetails, queue: str | None, now: datetime) -> tuple[str, str]:
    window = details.open
    if window is None:  # the store lost its account
        return "published", "nothing more is known of it"
    failed = f", after {printable(details.failure)}" if details.failure else ""
    if details.run == "running":
        return "running", f"running since {_began(window)}"
    overdue = details.deadline is not None and details.deadline <= now
    if window.waits or (window.begun is None and details.run != "waiting"):
        return _unbegun(details, window, queue, overdue=overdue)
    if details.run == "waiting":
        return "waiting", f"waits for retry {details.retry}{failed}"
    if not window.given_back:
        return "overdue" if overdue else "running", f"began {_began(window)}, and its worker doesn't renew its lease"
    again = "is to run again" if overdue or details.deadline is None else f"runs again by {_at(details.deadline)}"
    return "overdue" if overdue else "waiting", f"{again}, began {_began(window)}{failed}"


def _unbegun(details: AlertDetails, window: OpenWindow, queue: str | None, *, overdue: bool) -> tuple[str, str]:
    if window.waits:
        return "buffered", _waits(details, window, queue)
    words = f"claimed at {_at(window.claimed)}, {_unconsumed(details, queue)}"
    return "overdue" if overdue else "published", words


def _waits(details: AlertDetails, window: OpenWindow, queue: str | None) -> str:
    if window.state == "waits_slot":
        return f"waits for a slot of the limit {shown(details.limit)}"
    if details.waits_for is not None:
        return f"waits for the window of {_at(details.waits_for)}"
    return f"it is its turn, {_unconsumed(details, queue)}"


def _unconsumed(details: AlertDetails, queue: str | None) -> str:
    where = f" the queue {shown(queue)}" if queue else " its queue"
    return "and no worker has begun it" + (f": no worker consumes{where}" if details.unconsumed else "")


def _began(window: OpenWindow) -> str:
    assert window.begun is not None
    on = f" on {short(host_of(window.owner))}" if window.owner else ""
    attempt = f", attempt {window.attempts}" if window.attempts > 1 else ""
    return f"{_at(window.begun)}{on}{attempt}"


def _at(instant: datetime) -> str:
    return format_instant(instant.replace(microsecond=0)).replace(".000000", "")
