"""Which windows are late: not done ``deadline`` seconds after their start. By the store alone, also without beats.

Pure. Of a paused entry only what is open can be late: nobody claims the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_once_beat.features.alerts.reasons import why_late

from .lineup import Listed


@dataclass(frozen=True, slots=True)
class LateWindow:
    """A window that is late."""

    entry: str
    start: datetime
    #: How it stands, a name of ``outcomes.STATES``; ``unclaimed``: no beat has claimed it.
    state: str
    #: The same in words.
    why: str


def deadline_of(listed: Listed) -> timedelta | None:
    """Return the deadline of an entry's windows: as beats have loaded it, else as this process has it. None: none."""
    account = listed.seen.account
    seconds = account.deadline if account else listed.entry.policy.deadline if listed.entry else None
    return None if seconds is None else timedelta(seconds=seconds)


def late_now(listed: Listed, now: datetime) -> tuple[LateWindow, ...]:
    """Return the late windows that are open, the oldest first; then the oldest that no beat has claimed."""
    deadline, account = deadline_of(listed), listed.seen.account
    if deadline is None or account is None:
        return ()
    due = unclaimed(listed)
    late = [
        LateWindow(listed.name, window.start, *why_late(window, account))
        for window in reversed(listed.seen.windows)
        if window.open is not None and not window.open.backfill and window.start + deadline < now
    ]
    if due is not None and due + deadline < now:  # no beat lives, or none makes progress
        late.append(LateWindow(listed.name, due, "unclaimed", "no beat has claimed it"))
    return tuple(late)


def late_last(listed: Listed, now: datetime) -> LateWindow | None:
    """Return the newest window that has ended, if it isn't done, and no window was done for longer than a deadline.

    That time counts from the first window after the last one that was done: of an entry that fails each minute, the
    newest window is always young. Of a paused entry it is None.
    """
    deadline, last, account = deadline_of(listed), listed.seen.last, listed.seen.account
    if deadline is None or last is None or last.past is None or last.state == "done" or (account and account.paused):
        return None
    first = last.start
    if account is not None:
        first = min(first, listed.after(account.last_done or account.born) or first)
    if first + deadline >= now:
        return None
    return LateWindow(listed.name, last.start, *why_late(last, account))


def unclaimed(listed: Listed) -> datetime | None:
    """Return the oldest start that a beat is to claim; None where there is none, or beats are yet to load the entry."""
    account = listed.seen.account
    return None if account is None or account.paused or not listed.owned else listed.after(account.cursor)
