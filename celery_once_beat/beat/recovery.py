"""Overdue windows: something that should have happened didn't. They are published again, or ended by their rules.

A beat killed between claim and publish, a message lost in the broker, a worker killed with early or late acks and
a purged queue all end the same way. Every beat sweeps; the deadline that ``take`` moves is the mutex between them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import Logged, about, get_logger, log_window
from celery_once_beat.outcomes import OUTCOMES
from celery_once_beat.settings import WORKER_TTL
from celery_once_beat.store import BeatReport, Closed, Heartbeat, Overdue, Store, Taken, Unchanged, Unconsumed, read_app
from celery_once_beat.windows import Window, WindowKey, is_child
from celery_once_beat.wording import shown

from .entries import Entries
from .entry import BeatEntry
from .publishing import Job
from .server_clock import ServerClock

logger = get_logger(__name__)

#: Overdue windows read of each shard at a time.
_MOST = 100
#: Of more queues it isn't told which are consumed.
_MOST_QUEUES = 500
#: Seconds for which an overdue window of an entry that left the schedule is put off: it may come back any time.
_PUT_OFF = 60.0
#: ``Taken.publishes`` at the first take: the claim, or the order, counts as 1. A window that waits restarts at 0.
_FIRST_TAKEN = 2
#: From this publish on without a begin, the log says where to look.
_OFTEN = 3


class Recovery:
    """One beat's sweep, every ``recovery_interval``: it finds what is overdue, and is the heartbeat too."""

    def __init__(
        self, store: Store, beat: str, clock: ServerClock, entries: Entries, sender: object, app: str, broker: str
    ) -> None:
        self._store = store
        self._entries = entries
        #: As :func:`~celery_once_beat.settings.describe_app` and ``name_broker`` say it.
        self._app, self._broker = app, broker
        #: The app of each beat that lives.
        self._apps: dict[str, str | None] = {}
        self._beat = beat
        self._clock = clock
        #: The ``sender`` of signals.
        self._sender = sender
        self._next = 0.0
        #: The beats that lived at the last sweep that reached their list, for warnings. Scripts know it by themselves.
        self.alive: tuple[str, ...] = ()
        #: The shards that have known of this beat.
        self._known_in: set[int] = set()
        #: What the last sweep found.
        self.found: Overdue
        #: The last sweep found that the store had forgotten this beat: it lost its data, or the beat was frozen.
        self.forgotten = False
        #: What the last sweep wrote is where ``once_beat_wait_replicas`` wants it.
        self.certain = True
        #: Per shard, how many of the longest overdue windows to skip, since nobody could move them.
        self._skip: dict[int, int] = {}
        #: Shards with more overdue windows than were read, and shards where a window was moved since.
        self._full: set[int] = set()
        self._moved: set[int] = set()
        self._logged = Logged(math.inf)

    def due_in(self) -> float:
        """Seconds until the next sweep, at least 0."""
        return max(self._next - steady(), 0.0)

    def hurry(self, within: float = 0.0) -> None:
        """Sweep within so many seconds; 0: at the next tick."""
        self._next = min(self._next, steady() + within)

    def sweep(self, report: BeatReport) -> list[WindowKey]:
        """Say that this beat lives, with its report; learn the time and who else lives; return what is overdue.

        Raises StoreUnavailableError if Redis doesn't answer. ``found`` says if only a node of a cluster doesn't.
        """
        # Start after the windows that this beat couldn't move, so that they don't hide others.
        self._skip = {shard: self._skip.get(shard, 0) + _MOST for shard in self._full - self._moved}
        self._full, self._moved = set(), set()
        asked = [(part, part.before_sweep(report)) for part in self._entries.parts]
        requests = [request for _, of_part in asked for request in of_part]
        sent = steady()
        found = self.found = self._store.overdue(
            self._beat, self._clock.now(), _MOST, self._skip, report, self._app, requests=requests
        )
        self.forgotten = not found.new.isdisjoint(self._known_in)
        self._known_in |= found.new
        if isinstance(found.heartbeat, Heartbeat):
            self._clock.measured(found.heartbeat.now, sent, steady())
            self.alive, self.certain = found.heartbeat.beats, found.heartbeat.certain
        elif not self.alive:
            raise found.heartbeat  # without the server's time nothing can be claimed
        self._warn_of_other_apps()
        self._next = sent + self._store.settings.recovery_interval
        overdue = dict.fromkeys(self._read(found))
        replies = iter(found.replies)
        for part, of_part in asked:
            overdue.update(dict.fromkeys(part.after_sweep(found, [*islice(replies, len(of_part))])))
        return list(overdue)

    def _warn_of_other_apps(self) -> None:
        """Warn of a beat of another app: of two entries with the same name only one would run."""
        known = {beat: app for beat, app in self._apps.items() if beat in self.alive}
        try:
            new = self._store.apps([beat for beat in self.alive if beat not in known])
        except StoreUnavailableError:
            return
        mine, named = read_app(self._app), {*known.values()}
        self._apps = {**known, **new}
        for beat, app in new.items():
            if app not in (None, mine, *named):
                named.add(app)
                text = (
                    "once: beat %s is of the app %s, this one of %s, and both use the keys %s…: of two entries "
                    "with one name only one runs. Give each app its own once_beat_key_prefix"
                )
                prefix = self._store.settings.key_prefix
                logger.warning(text, beat, app, mine, prefix, extra=about("apps_share", owner=self._beat))

    def _read(self, found: Overdue) -> list[WindowKey]:
        windows: list[WindowKey] = []
        for shard, swept in enumerate(found.shards):
            if isinstance(swept, StoreUnavailableError):
                continue  # see ``Overdue.away``
            if isinstance(swept, OnceError):
                self._log_once(f"shard {shard}", swept, about("shard_unreadable", shard=shard))
                continue
            self._logged.end(f"shard {shard}")
            windows += [each for each in swept.windows if isinstance(each, WindowKey)]
            if len(swept.windows) == _MOST:
                self._full.add(shard)
        return windows

    def not_refused(self, overdue: Sequence[WindowKey]) -> Iterator[WindowKey]:
        """Leave out windows that the broker would refuse again, for a missing exchange or a queue of another type.

        Of an entry whose last message it refused, only the oldest window is tried: once that goes out, all are.
        """
        now = steady()
        oldest: dict[str, WindowKey] = {}
        for key in overdue:
            entry = self._entries.get(key.entry)
            if entry is None or entry.refused is None:
                yield key
            elif now >= entry.refused.until:
                oldest[key.entry] = min(key, oldest.get(key.entry, key), key=lambda window: window.start)
        yield from oldest.values()

    def take(self, windows: Sequence[WindowKey]) -> tuple[list[Job], StoreUnavailableError | None]:
        """Take those that this beat can publish again. Windows that a rule ends (``max_attempts``, say) are logged.

        Returns what to publish, and why Redis didn't answer for all of them.
        """
        entries = self.find(windows)
        # Also entries that are astray: the window is published once more, and ends with that.
        ours = {window: entry for window, entry in entries.items() if entry and (entry.tracked or entry.astray)}
        known = [(window, entry.fingerprint) for window, entry in ours.items()]
        taken = self._store.take_many(self._beat, known, self._consumed()) if known else []
        jobs: list[Job] = []
        away: StoreUnavailableError | None = None
        for (window, entry), reply in zip(ours.items(), taken, strict=True):
            if isinstance(reply, StoreUnavailableError):
                away = reply
                continue
            if isinstance(reply, OnceError):
                self._log_once(str(window), reply, about("window_unreadable", window, owner=self._beat))
                continue
            self._logged.end(str(window))
            if isinstance(reply, (Taken, Unconsumed, Closed)) or reply == Unchanged("waits"):
                self._note_moved(window)
            if isinstance(reply, Taken):
                with self._entries.isolate(entry):
                    jobs.append(self._overdue(entry, window, reply))
            elif isinstance(reply, Unconsumed):
                if self._logged.is_new((window.entry, "unconsumed"), reply):
                    what = "waits: no worker that knows windows consumes its queue %s"
                    log_window(logger, logging.WARNING, "window_not_begun", window, what, shown(reply.queue))
            elif isinstance(reply, Closed):
                self._ended(window, reply.outcome, OUTCOMES[reply.outcome].meaning)
        try:
            self._put_off({window: entry for window, entry in entries.items() if window not in ours})
        except StoreUnavailableError as exc:
            away = exc  # what was taken has to be published all the same
        return jobs, away

    def _consumed(self) -> set[str] | None:
        """Return the queues that workers consume; None where that isn't known."""
        try:
            workers, unreadable = self._store.workers(self._clock.now(), WORKER_TTL)
        except OnceError as exc:
            if not isinstance(exc, StoreUnavailableError):  # else a node of a cluster: other nodes' windows go on
                self._log_once("workers", exc, about("workers_unreadable", owner=self._beat))
            return None
        self._logged.end("workers")
        queues = {queue for worker in workers.values() for queue in worker.queues}
        # Messages may get from here to another broker (a shovel, a federation), or that is another name of this one.
        elsewhere = any(worker.broker != self._broker for worker in workers.values())
        return None if elsewhere or unreadable or "-" in queues or len(queues) > _MOST_QUEUES else queues

    def find(self, windows: Iterable[WindowKey]) -> dict[WindowKey, BeatEntry | None]:
        """Return the entry of each window; None: this beat has none. Leaves out windows of entries yet to be read."""
        get = self._entries.get
        unknown = {window for window in windows if get(window.entry) is None}
        found: dict[WindowKey, BeatEntry] = {}
        unread: set[WindowKey] = set()
        for source in self._entries.sources if unknown else ():
            known, there = source.find(unknown)
            found |= known
            unread |= there
            unknown -= found.keys() | unread
        return {each: get(each.entry) or found.get(each) for each in windows if each not in unread}

    def _overdue(self, entry: BeatEntry, window: WindowKey, taken: Taken) -> Job:
        # An order is carried out by the present definition.
        by = entry if taken.ordered else entry.as_of(window.start)
        job, attempt = Job(by, window.start, taken, again=True), taken.attempts + 1
        log = partial(log_window, logger, owner=self._beat)
        if taken.ordered and not job.begun and taken.publishes == _FIRST_TAKEN:
            log(logging.INFO, "window_ordered", window, "is run by order")
        elif not taken.attempts and taken.publishes <= (_FIRST_TAKEN if is_child(window.entry) else 1):
            # No beat has published this child yet: its opener left that to beats, or died before it did.
            log(logging.INFO, "window_called", window, "has waited, and is published now")
        else:
            action, text = "window_overdue", "is overdue, to be published again"
            if taken.publishes >= _OFTEN and not job.begun:
                action = "window_not_begun"
                text += ": no worker has begun it. Does one consume its queue, and know its task as an OnceTask?"
            log(logging.WARNING, action, window, text, attempt=attempt, task=by.source.task)
            signals.window_overdue.send(sender=self._sender, window=entry.window(window.start, attempt))
        return job

    def _note_moved(self, window: WindowKey) -> None:
        self._moved.add(self._store.shard_of(window.entry))

    def _put_off(self, entries: dict[WindowKey, BeatEntry | None]) -> None:
        windows = [(window, "unknown" if entry is None else "untracked") for window, entry in entries.items()]
        replies = self._store.postpone_many(self._beat, windows, _PUT_OFF) if windows else []
        for (window, _), reply in zip(windows, replies, strict=True):
            if reply in ("closed", "postponed", "forgotten"):
                self._note_moved(window)
            if reply == "closed":
                self._ended(window, "dropped", "no beat tracks its entry any more")
            elif reply == "postponed" and self._logged.is_new(("unknown", window)):
                what = "is overdue, and no beat's schedule has such an entry"
                log_window(logger, logging.WARNING, "window_unknown", window, what, owner=self._beat)

    def _ended(self, window: WindowKey, outcome: str, why: str) -> None:
        action = OUTCOMES[outcome].action
        log_window(logger, logging.ERROR, action, window, "is %s: %s", outcome, why, owner=self._beat)
        ended = Window(window.entry, window.start, None)
        signals.window_abandoned.send(sender=self._sender, window=ended, outcome=outcome)
        signals.window_closed.send(sender=self._sender, window=ended, outcome=outcome, count=1)

    def _log_once(self, what: str, error: OnceError, extra: dict[str, object]) -> None:
        """Log a lasting trouble once, not at every sweep that meets it."""
        text = str(error)
        known = self._logged.has(text)  # one broken field is met once for each window of its entry
        if self._logged.is_new(what, text) and not known:
            logger.error("once: %s", text, extra=extra)
