"""When somebody should look at an entry: each reason once. Status, board, metrics, doctor and docs read it here. Pure.

A new reason is a row here, the lines of ``report`` that find it, and its row in the docs. A test finds who lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from celery_once_beat.lookup import EntrySeen, Past
from celery_once_beat.settings import WORKER_TTL

#: A run is hung if it takes longer than so many times the longest of those that are recorded, ...
_TIMES_LONGER = 5
#: ... and than this; ...
LEAST_HUNG = timedelta(seconds=60)
#: ... so many have to be recorded. With fewer its entry's interval counts, within these bounds.
_LEAST_RUNS = 3
_LEAST_INTERVAL, _MOST_INTERVAL = timedelta(hours=1), timedelta(days=1)
#: After a start, the time within which a beat that lives has claimed it, or something is wrong.
CLAIMED_WITHIN = timedelta(seconds=15)
#: A window is stuck if it was published, and for so long no worker has begun it.
STUCK_AFTER = timedelta(seconds=60)
#: The share of its maxmemory from which on a server is nearly full.
NEARLY_FULL = 0.8
#: So many skipped windows in a row are too many.
_MOST_SKIPPED = 3
#: A lease is renewed at each third of it; a worker is silent once it is so much later than that.
_RENEWAL_LATE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A reason to look at an entry."""

    name: str
    #: Entries with a larger one are shown first.
    urgency: int
    #: When it is so, for people.
    meaning: str
    #: It is set up wrongly, and doctor says so; else it ran badly.
    setup: bool = False


#: At so much urgency nothing is claimed.
STOPS_ALL = 9

NO_BEAT = Judgement("no beat", STOPS_ALL, "no beat lives")
BEHIND = Judgement("behind", STOPS_ALL, "the Redis server's clock went back, and the entry isn't claimed", setup=True)
TICKS_FAIL = Judgement("ticks fail", STOPS_ALL, "a beat lives and does nothing, since its ticks fail")
BROKER_AWAY = Judgement("broker away", STOPS_ALL, "a beat lives and claims nothing, since it can't use the broker")
#: The days are ``settings.LOSS_SHOWN``.
DATA_LOST = Judgement("data lost", 8, "within the last 3 days Redis lost entries that a beat had loaded")
MEMORY = Judgement("memory", 8, "Redis has used 80 % of its maxmemory")
LEFT_OUT = Judgement("left out", 8, "one of its options is wrong, so no beat runs it", setup=True)
UNREADABLE = Judgement("unreadable", 7, "one of its keys in Redis can't be read", setup=True)
BROKEN = Judgement("broken", 6, "its next start can't be computed, or a beat leaves it out", setup=True)
UNCLAIMED = Judgement(
    "unclaimed",
    6,
    f"a window has been due for {CLAIMED_WITHIN.total_seconds():g} s, and no beat has claimed it",
    setup=True,
)
UNKNOWN_TASK = Judgement(
    "unknown task",
    6,
    "a worker didn't know the task of a window that is still open, or of the newest one if it is untracked",
    setup=True,
)
STOPPED = Judgement("stopped", 6, "so many windows failed in a row that pause_after_failures has paused it")
HUNG = Judgement(
    "hung",
    6,
    f"a window has run for more than {LEAST_HUNG.total_seconds():g} s, and {_TIMES_LONGER} times as long as the "
    f"longest done window of its entry's history. If fewer than {_LEAST_RUNS} are done: for longer than the "
    "entry's interval, taken as at least 1 h and at most 1 d",
)
WORKER_HANGS = Judgement(
    "worker hangs",
    6,
    f"a worker with windows, or alone in its queue, hasn't reported for {WORKER_TTL:g} s; or windows have waited in it "
    f"for {STUCK_AFTER.total_seconds():g} s while it executes nothing, or only what hangs",
)
UNCONSUMED = Judgement(
    "no consumer",
    6,
    f"windows were published more than {STUCK_AFTER.total_seconds():g} s ago (plus their countdown), and no worker "
    "consumes their queue",
)
HELD_UP = Judgement("held up", 5, "windows are due or overdue, and no beat claims anything")
OVERDUE = Judgement(
    "overdue", 5, "windows didn't begin, renew their lease or retry in time: a beat publishes them again"
)
LATE = Judgement("late", 5, "a window isn't done by its entry's deadline")
STUCK = Judgement(
    "stuck",
    5,
    f"no worker has begun a window within {STUCK_AFTER.total_seconds():g} s of its publish (plus countdown), though "
    "workers consume its queue",
)
SILENT = Judgement(
    "silent",
    4,
    "the worker that runs a window should have renewed the lease more than "
    f"{_RENEWAL_LATE.total_seconds():g} s ago: it may be dead",
)
SKIPPING = Judgement("skipping", 3, f"the last {_MOST_SKIPPED} windows or more were skipped")
#: Its urgency is the outcome's, see ``outcomes``.
FAILED = Judgement("failed", 3, "the last window failed, was abandoned, dropped, missed, or its message expired")
NOT_LOADED = Judgement("not loaded", 2, "no beat has loaded it yet", setup=True)
LOADED_OTHERWISE = Judgement("loaded otherwise", 2, "living beats have loaded another definition of it", setup=True)
STRANGER = Judgement("stranger", 2, "it has overdue windows, and is in no schedule", setup=True)
PAUSED = Judgement("paused", 1, "somebody has paused it")

#: All of them, the most urgent first: so they stand above.
JUDGEMENTS = tuple(each for each in vars().values() if isinstance(each, Judgement))


def needs_records(seen: EntrySeen, now: datetime) -> bool:
    """Whether an entry's whole history is needed to judge it."""
    if seen.account is not None and seen.account.open:
        begun = [window.open.begun for window in seen.windows if window.state == "running" and window.open]
        if any(at is not None and now - at > LEAST_HUNG for at in begun):
            return True
    last = seen.last
    return last is not None and last.state == "skipped"


def longest_run(records: Sequence[Past]) -> timedelta | None:
    """Return the longest of an entry's runs; None where too few are recorded.

    Only those that are done count: what failed or was given up may have hung itself.
    """
    runs = [past.took for past in records if past.outcome == "done" and past.took is not None]
    return max(runs) if len(runs) >= _LEAST_RUNS else None


def is_hung(running_for: timedelta, longest: timedelta | None, interval: timedelta | None) -> bool:
    """Whether a window that runs for so long hangs, by the longest run before, else by its entry's interval."""
    if longest is not None:
        return running_for > max(_TIMES_LONGER * longest, LEAST_HUNG)
    return running_for > min(max(interval or _MOST_INTERVAL, _LEAST_INTERVAL), _MOST_INTERVAL)


def is_silent(heard: timedelta, lease: float) -> bool:
    """Whether a worker renewed a lease of so many seconds too long ago."""
    return heard > timedelta(seconds=lease / 3) + _RENEWAL_LATE


def skipped_in_a_row(records: Sequence[Past]) -> int:
    """Return how many of the newest windows were skipped, if too many, else 0; ``records`` are newest first."""
    number = sum(1 for _ in takewhile(lambda past: past.outcome == "skipped", records)) if records else 0
    return number if number >= _MOST_SKIPPED else 0
