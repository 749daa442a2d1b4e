"""What the store is asked, and what it answers. A refusal is an answer, not an exception.

Instants are aware UTC datetimes; ``expires`` too, None for never. ``revision`` is given back with ``confirm``. What is
asked about a window, or of a load, has the names of its verb's arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.windows import WindowKey


class ActedOn:
    """An answer that callers act on. With wait_replicas, a failover must not be able to undo it.

    Each has a write behind it, also where a verb is sent again: WAIT waits for the writes of its connection alone. A
    heartbeat is waited for so that a beat that wins nothing learns that replicas are back.
    """


class Published(str, Enum):
    """What became of a window's message, as ``lua/confirm.lua`` reads it."""

    __str__ = str.__str__

    SENT = "sent"
    #: It is still to go out: the claim is renewed.
    NOT_YET = "not_yet"
    #: It didn't go out, or perhaps not: the window is published again.
    UNSURE = "unsure"
    #: It can't be made (its arguments, say): the window fails after max_attempts such publishes.
    IMPOSSIBLE = "impossible"
    #: It went out, but no worker can tell that it belongs to a window: the window ends as untracked.
    ASTRAY = "astray"


class LoadRequest(NamedTuple):
    """One entry's definition as a beat has it. Times are seconds, ``loaded_at`` is server ms, 0 the first time."""

    entry: str
    beat: str
    fingerprint: str
    #: How long the entry is remembered after the last contact.
    ttl: float
    policy: EntryPolicy
    loaded_at: int = 0
    #: The cursor as this beat knew it; used only where the store has lost it. Aware UTC.
    known: datetime | None = None
    #: From where it counts, as an earlier load returned it; used only where the store has lost that. Aware UTC.
    counted_from: datetime | None = None
    #: From where a definition that is new or changed counts; None for now. Aware UTC.
    counts_from: datetime | None = None
    #: Until when the beat knows that the entry was in no schedule: windows up to then don't count. Aware UTC.
    absent_at: datetime | None = None
    #: It was set at run time: the store has the definition.
    stored: bool = False
    #: What readers are shown of it: JSON, see ``schedules.loaded``; '' for nothing.
    defined: str = ""
    #: The key of the database's row that it is made of; '' for none. ``row_at``: when that was edited last, aware UTC.
    row: str = ""
    row_at: datetime | None = None
    #: The words of the pause that the beat knows, or that a row brings along which comes from another name; '-' where
    #: that isn't paused; '' where nothing is known.
    pause: str = ""


class ClaimRequest(NamedTuple):
    """One claim of a pipeline: ``window`` next to ``from_cursor``, passing over ``missed``."""

    window: WindowKey
    from_cursor: datetime
    fingerprint: str
    #: ``run``, ``untracked``, or ``pass``: the window itself is missed.
    mode: str = "run"
    #: Seconds from now after which the message expires; None for never.
    expires: float | None = None
    #: The newest of the windows passed over, in order, and how many there are in all.
    missed: Sequence[datetime] = ()
    missed_count: int = 0
    #: Up to then earlier definitions count, which the beat knows; None: there are none.
    owed_until: datetime | None = None


class Confirmation(NamedTuple):
    """What became of the message of a window that was claimed or taken."""

    window: WindowKey
    #: As the claim or take gave it: it tells this publish from a later one.
    revision: int
    published: Published
    #: Seconds for which it may wait for a worker.
    start_timeout: float
    #: The queue that has it; None where that isn't known.
    queue: str | None = None


class Renewal(NamedTuple):
    """One lease to be renewed for ``lease`` seconds."""

    window: WindowKey
    owner: str
    fence: int
    lease: float
    tracked: bool


class Ending(NamedTuple):
    """The end of one execution that is to be recorded: done, failed or revoked.

    ``again`` is the task's ``retry_failed_after`` (seconds; 0: none), over which the entry's takes precedence: so
    much later the window runs again, up to its max_attempts. None: nothing runs it again. ``fence`` is the begin's, or
    0 where the caller doesn't know it: then only the run key counts. ``failure`` is what people read of a failure.
    """

    window: WindowKey
    owner: str
    fence: int
    outcome: str
    again: float | None = None
    tracked: bool = True
    failure: str = ""
    #: The body had returned before that failed: so it counts for no pause.
    returned: bool = False


@dataclass(frozen=True)
class Loaded(ActedOn):
    """The beat's definition of the entry is in force, for the windows after ``since``; it continues from ``cursor``."""

    cursor: datetime
    loaded_at: int
    news: str
    #: Who paused it, and why, as :class:`LoadRequest` has it; '' where it isn't paused.
    pause: str
    since: datetime


@dataclass(frozen=True)
class Spent:
    """A one-off has had its window; ``again``: from where it counts since it was enabled again, None if it wasn't."""

    again: datetime | None = None


#: Stands for the beat where none superseded the definition: people have set it anew at run time.
SET_ANEW = "-"


@dataclass(frozen=True)
class Superseded:
    """A living beat loaded another definition of the entry later; or see :data:`SET_ANEW`."""

    #: '' in the reply to a claim: a load tells which beat.
    beat: str
    loaded_at: int | None = None
    #: That beat's, for people.
    fingerprint: str = field(default="", compare=False)


@dataclass(frozen=True)
class Claimed(ActedOn):
    """The window is this beat's to publish. ``missed`` windows before it were counted as that."""

    #: As of one that was taken: nothing of it has begun, and this is its first publish.
    retry = attempts = 0
    publishes = 1

    revision: int
    expires: datetime | None
    missed: int = 0
    #: When a person ordered it to run, aware UTC; None: nobody did.
    ordered: datetime | None = None


@dataclass(frozen=True)
class Moved:
    """The window isn't this beat's; go on from ``cursor``. ``missed`` windows before it were counted as that."""

    cursor: datetime
    missed: int = 0


@dataclass(frozen=True)
class Paused:
    """The entry is paused."""


@dataclass(frozen=True)
class Unknown:
    """The store has no such entry: never loaded, or the store lost its data."""


@dataclass(frozen=True)
class Confirmed(ActedOn):
    """The deadline has moved."""


@dataclass(frozen=True)
class Unchanged:
    """Nothing was changed, for this ``reason``."""

    reason: str = ""


@dataclass(frozen=True)
class Unconsumed:
    """No worker consumes the queue that has the window's message; nothing was changed but its deadline."""

    queue: str
    #: The entry's last begin: while that is the same, none of its windows has begun.
    fence: int


@dataclass(frozen=True)
class Taken(ActedOn):
    """An overdue window is this beat's to publish again, with the retry number that was handed over."""

    revision: int
    retry: int
    attempts: int
    expires: datetime | None
    #: Since it last began, this one included.
    publishes: int
    #: When a person ordered it to run, aware UTC; None: nobody did.
    ordered: datetime | None = None


@dataclass(frozen=True)
class Closed:
    """The window has its outcome. ``outcome`` is empty where it was closed before."""

    outcome: str = ""
    #: Why, where the outcome alone doesn't show that.
    why: str = ""


@dataclass(frozen=True)
class Begun(ActedOn):
    """The window is this delivery's to execute."""

    fence: int
    attempt: int
    last_done: datetime | None
    #: Others wait for its end.
    end_at_once: bool = False


#: Why a copy has to come again later: no beat recovers its window.
RUNS_ALONE = "runs alone"


@dataclass(frozen=True)
class Busy:
    """Another has the window, or this copy of its message is older than the retry handed over."""

    reason: str


@dataclass(frozen=True)
class Waits:
    """The window waits, and a beat publishes it when its turn comes. Instants are aware UTC."""

    #: For which window of its entry; None: for a slot of its limit.
    waits_for: datetime | None
    #: Starts of windows that are passed over now: they ended as skipped.
    skipped: tuple[datetime, ...] = ()


class WorkerSeen(NamedTuple):
    """The last report of a worker that knows windows, at ``heard``, aware UTC."""

    heard: datetime
    #: As ``settings.name_broker`` names it.
    broker: str
    #: Those that it consumes; ``-`` stands for names that can't be kept.
    queues: set[str]


@dataclass(frozen=True)
class Renewed(ActedOn):
    """The lease was renewed."""


@dataclass(frozen=True)
class Stale:
    """The window isn't this execution's any more, see :mod:`.protocol`; nothing was changed."""


@dataclass(frozen=True)
class HandedOver(ActedOn):
    """The window waits for its retry."""


@dataclass(frozen=True)
class Finished(ActedOn):
    """The outcome is recorded."""


@dataclass(frozen=True)
class Again(ActedOn):
    """The same window will be published again, ``after`` seconds from now."""

    after: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Heartbeat:
    """The server's time (aware UTC), and the beats alive."""

    now: datetime
    beats: tuple[str, ...]
    #: At least ``once_beat_wait_replicas`` replicas have what was written with it.
    certain: bool = True


@dataclass(frozen=True)
class BeatReport:
    """A beat's report on itself, sent with its heartbeat; display only. Times are seconds; None: not reported."""

    #: By how much its machine's clock is ahead of the server's.
    offset: float | None = None
    #: How late the entry was that had been due longest.
    lag: float | None = None
    entries: int | None = None
    untracked: int | None = None
    version: str | None = None
    #: How many of its entries it has yet to load.
    unloaded: int | None = None
    #: Why its ticks fail, so that it does nothing; '' where they don't. And for how long they have.
    failing: str = ""
    failing_for: float = 0.0
    #: What its broker does, so that it claims nothing: "doesn't answer: …"; '' where all is well. And for how long.
    broker: str = ""
    broker_for: float = 0.0
    #: Entries that it leaves out, each with why; a few.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Its limits, each with its slots.
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """The store has lost so many entries that beats had loaded, the last at ``at``, aware UTC."""

    entries: int
    at: datetime


class Swept(NamedTuple):
    """What a beat's sweep of one shard found; of members that are foreign None."""

    #: The shard hadn't known of the beat.
    new: bool
    #: Those past their deadline.
    windows: list[WindowKey | None]
    #: The features that have something to see to in this shard.
    work: frozenset[str] = frozenset()


class Overdue(NamedTuple):
    """What one look found in each shard, or the shard's error."""

    #: An error if the cluster's node that keeps the beats is away.
    heartbeat: Heartbeat | StoreUnavailableError
    shards: list[Swept | OnceError]
    #: Replies to what travelled with it.
    replies: list[Any]

    @property
    def new(self) -> set[int]:
        """The shards that hadn't known of the beat."""
        return {shard for shard, each in enumerate(self.shards) if isinstance(each, Swept) and each.new}

    def with_work(self, feature: str) -> list[int]:
        """Return the shards in which the feature has something to see to."""
        return [shard for shard, each in enumerate(self.shards) if isinstance(each, Swept) and feature in each.work]

    @property
    def away(self) -> StoreUnavailableError | None:
        """Why some of it isn't known: a node of a cluster doesn't answer."""
        return next((part for part in (self.heartbeat, *self.shards) if isinstance(part, StoreUnavailableError)), None)


ClaimReply = Claimed | Moved | Paused | Superseded | Unknown
ConfirmReply = Confirmed | Closed | Unchanged
TakeReply = Taken | Closed | Unconsumed | Unchanged
