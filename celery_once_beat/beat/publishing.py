"""How a window's message goes out: through Celery's own ``apply_entry``, over a connection that is known to live.

Decided here: which claimed windows there is still time to publish, and whether a publish that failed is to be tried
again (the broker was away) or never can be (its arguments, say). Inherited by the scheduler, not held by it as
``claiming`` and ``recovery`` are, since it stands between the base's own methods.

What if the process dies, or sleeps for an hour:

- between claim and publish: the window is overdue after ``publish_timeout``; another beat takes it. So are up to SLICE
  windows whose messages waited for each other;
- between publish and confirm: the same, and the worker refuses the second copy.

How long it may take: a broker that answers slowly, or not at all, holds a tick for ``_PATIENCE`` seconds and the time
that it takes to connect. A message is tried once; recovery tries it again. An untracked window is closed at its claim,
so that nobody else would publish it: what there was no time for waits here, and nothing is claimed meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from celery.beat import Scheduler
from celery.utils.log import get_logger

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about
from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.store import Closed, Confirmation, Published, Store
from celery_once_beat.windows import Window, WindowKey, encode_headers, format_instant, task_id, with_window
from celery_once_beat.wording import shown

from . import broker
from .departure import Departure
from .entries import Row
from .results import Results
from .server_clock import ServerClock

__all__ = ("SLICE", "Job", "Publishing")

logger = get_logger(__name__)

#: Windows that are taken, published and confirmed together.
SLICE = 100
#: Seconds that a tick spends on publishing, at most: its beat has to be heard of before BEAT_TTL is over.
_PATIENCE = BEAT_TTL / 3
#: After this many publishes without a begin, the log says where to look.
_OFTEN = 3


@dataclass(frozen=True)
class Job:
    """A window to publish: claimed, or with ``again`` taken since it was overdue."""

    row: Row
    start: datetime
    turn: int
    expires: datetime | None
    retry: int = 0
    attempt: int = 1
    #: When a person ordered it; None: nobody did.
    ordered: datetime | None = None
    again: bool = False
    #: Publishes since the window last began, this one included.
    publishes: int = 1
    #: A first try may have failed, and nobody else would publish it.
    tried: bool = False

    @property
    def tracked(self) -> bool:
        """Whether the window is open until a worker closes it; its entry may be untracked by now."""
        return self.turn > 0

    @property
    def begun(self) -> bool:
        """Whether an execution of the window has begun before."""
        return self.attempt > 1 or self.retry > 0


class Sent(NamedTuple):
    """A window that was published, or not: what :meth:`Publishing._send` says of it."""

    job: Job
    window: Window
    published: Published


def _alone(job: Job) -> bool:
    """Whether a window's message travels by itself: when a batch fails, all that were in it are published again.

    Untracked windows can't be. One that is published again may be what a batch failed for.
    """
    return job.again or not job.tracked


class Publishing(Scheduler):
    """The part of the scheduler that publishes; the schedule and who claims what are the subclass's."""

    _once: Store
    _clock: ServerClock
    _results: Results

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._published = Published.UNSURE
        self._hung = False
        self._until = 0.0
        self._reserve_failed = False
        self._broker_down = False
        self._broker_seen = 0.0
        self._alarm = broker.Alarm()
        #: Untracked windows that this beat has claimed and not yet published.
        self._owed: list[Job] = []
        #: Entry → what its options raise, said once.
        self._unsendable: dict[str, str] = {}
        #: Entry → its window that was published often and never begun, and the queue into which it went.
        self._unbegun: dict[str, tuple[Job, str]] = {}
        #: Entry → its last fence, its task and the queue when that was logged.
        self._said_unbegun: dict[str, tuple[object, ...]] = {}
        super().__init__(*args, **kwargs)

    @property
    def _patience(self) -> float:
        """Seconds for publishing what was claimed; after publish_timeout another beat may have taken it."""
        return min(self._once.settings.publish_timeout / 2, _PATIENCE)

    def _publish(self, jobs: list[Job], claimed_at: float) -> None:
        """Publish windows claimed or taken at ``claimed_at`` (``clock.steady``), and confirm them slice by slice."""
        # Untracked windows first: they are closed at their claim, nothing brings back what isn't published.
        left = deque(sorted(jobs, key=_alone, reverse=True))
        self._until = claimed_at + self._patience
        while left and steady() < self._until and not self._broker_down:
            self._publish_slice(left)
        self._owed += (job for job in left if not job.tracked)  # of the others recovery sees to it

    def _publish_owed(self) -> None:
        """Publish what there was no time for."""
        owed, self._owed = self._owed, []
        self._publish(owed, steady())

    def _publish_slice(self, left: deque[Job]) -> None:
        """Publish the first of the jobs that are left, as many as there is time for, and confirm them."""
        until = min(self._until, steady() + self._once.settings.publish_timeout / 4)
        sent: list[Sent] = []
        alone = _alone(left[0])
        with broker.batch(None if alone else self._producer(), SLICE) as batch:
            while left and len(sent) < SLICE and steady() < until and _alone(left[0]) == alone:
                job = left.popleft()
                sent.append(self._publish_one(job))
                if sent[-1].published == Published.UNSURE:
                    # A batch belongs to one connection: it has gone, and is perhaps there again.
                    # A message that may lie in the broker's socket isn't sent twice: nobody would refuse the copy.
                    if not (job.tracked or job.tried or self._hung or self._alarm.on):
                        left.appendleft(replace(job, tried=True))
                    break
        if batch.failed:
            logger.error(
                "once: %d messages weren't published, or perhaps not: %s",
                sum(published == Published.SENT for _, _, published in sent),
                batch.failed,
                extra=about("batch_failed"),
            )
            self.broker_ready()
            sent = [
                Sent(job, window, published if published == Published.IMPOSSIBLE else Published.UNSURE)
                for job, window, published in sent
            ]
        for job, window, published in sent:
            if published == Published.SENT:
                signals.window_published.send(sender=self, window=window, again=job.again)
        self._confirm([self._confirmation(job, published) for job, _, published in sent if job.tracked])
        self._name_unbegun()

    def _publish_one(self, job: Job) -> Sent:
        """Publish one window. Whatever its entry's options raise is its trouble alone: its message can't be made."""
        row = job.row
        window = replace(row.window(job.start, job.attempt), tracked=job.tracked)
        if job.again or job.tried:
            entry = row.entry
        else:
            signals.window_claimed.send(sender=self, window=window)
            entry = self._reserve(row)
        try:
            published = self._send(entry, window, job)
        except Exception as exc:  # noqa: BLE001  # what a stranger's options, entry or scheduler raise
            published, why = Published.IMPOSSIBLE, shown(exc)
            if self._unsendable.get(row.name) != why:
                self._unsendable[row.name] = why
                logger.error(
                    "once: entry %r: its message can't be made: %s",
                    row.name,
                    why,
                    extra=about("entry_unsendable", window),
                )
        return Sent(job, window, published)

    def publish_by_order(self, row: Row, start: datetime, turn: int, ordered: datetime | None) -> Published:
        """Publish a window that was opened by order, and confirm it."""
        self._until = steady() + self._patience
        job, window, published = self._publish_one(Job(row, start, turn, None, again=True, ordered=ordered))
        if published == Published.SENT:
            signals.window_published.send(sender=self, window=window, again=True)
        self._confirm([self._confirmation(job, published)])
        return published

    def _confirmation(self, job: Job, published: Published) -> Confirmation:
        wait = job.row.policy.start_timeout + self._delay(job)
        return Confirmation(WindowKey(job.row.name, job.start), job.turn, published, wait)

    def _delay(self, job: Job) -> float:
        """Seconds until the job's message may run. Of one that is published again the countdown began long ago."""
        return job.row.timing.delay(self._clock.now(), job.start if job.again else None)

    def _confirm(self, confirmations: list[Confirmation]) -> None:
        """Confirm as far as the store answers.

        What isn't confirmed is overdue after publish_timeout, and the worker refuses the second copy; what has been
        claimed is to be published all the same. The next tick finds out whether the store is away.
        """
        try:
            replies = self._once.confirm_many(confirmations) if confirmations else []
        except StoreUnavailableError as exc:
            logger.debug("once: not confirmed: %s", exc)
            return
        for confirmation, reply in zip(confirmations, replies, strict=True):
            if isinstance(reply, Closed) and confirmation.published == Published.IMPOSSIBLE:
                key = confirmation.window
                logger.error(
                    "once: window %s of %r is failed: it can't be published, see the error above",
                    format_instant(key.start),
                    key.entry,
                    extra=about("window_unpublishable", key),
                )
                signals.window_closed.send(
                    sender=self, window=Window(key.entry, key.start, None), outcome="failed", count=1
                )

    def _send(self, entry: Any, window: Window, job: Job) -> Published:
        """Publish through the base's ``apply_entry``, which logs and swallows a failure. In a batch, SENT: into it."""
        if self._broker_down:
            return Published.UNSURE
        sent_as = task_id(self._once.settings.key_prefix, window.entry, window.start, job.ordered)
        departure = Departure(sent_as, encode_headers(window, sent_as))
        message = self._message(entry, window, job, departure)
        self._published, self._hung = Published.UNSURE, False
        producer = self._producer()
        if producer is not None:
            with self._alarm.during_publish(), departure.watched():
                self.apply_entry(message, producer=producer)
        if self._hung:
            self._drop_broker()  # what it says later would be taken for an answer to the next message
        if self._published == Published.UNSURE:
            self.__dict__.pop("producer", None)  # its channel may be that of a connection which is gone
            self.broker_ready()
        if self._published == Published.UNSURE and not self._broker_down:
            job.row.refused(time.monotonic(), self._once.settings.publish_timeout, again=job.again)
        else:
            job.row.refusals = 0
        if self._published == Published.SENT and departure.lost and window.tracked:
            self._gone_astray(job, window, departure.lost)
            return Published.ASTRAY
        if self._published == Published.SENT and job.publishes > 1 and not job.begun:
            self._results.watch(WindowKey(window.entry, window.start), departure.task_id)
            if job.publishes >= _OFTEN:
                self._unbegun[window.entry] = job, departure.queue
        return self._published

    def _message(self, entry: Any, window: Window, job: Job, departure: Departure) -> Any:
        """Return the entry as it is to be applied: with the window's options."""
        options = {key: value for key, value in (entry.options or {}).items() if key != "once"}
        # Celery writes into the headers of the options: a copy of its own for each message.
        options["headers"] = with_window(options.get("headers"), window, departure.task_id)
        options["task_id"] = departure.task_id
        # A broker that takes messages and confirms none must not hold a beat. It tries each message once: recovery
        # tries it again.
        options["confirm_timeout"] = max(self._until - steady(), 1.0)
        options["retry"] = False
        if job.again and options.get("countdown"):
            options["countdown"] = self._delay(job)
        if job.expires is not None:
            options["expires"] = job.expires
        if job.retry:
            options["retries"] = job.retry
        # An attribute more on the entry would break next(entry), and copy() loses what its __reduce__ leaves out.
        message = object.__new__(type(entry))
        message.__dict__.update(vars(entry), options=options)
        if not job.row.name.isprintable():
            message.name = repr(job.row.name)  # Celery logs it as it is: no line of its own for what follows a newline
        return message

    def _name_unbegun(self) -> None:
        """Say of each entry which of its windows was published often and never begun; again only if one began since."""
        unbegun, self._unbegun = self._unbegun, {}
        if not unbegun:
            return
        try:
            fences = self._once.fences(unbegun)
        except OnceError:
            return  # who needs the store will say so
        for (entry, (job, queue)), fence in zip(unbegun.items(), fences, strict=True):
            task = job.row.entry.task
            if isinstance(fence, OnceError) or self._said_unbegun.get(entry) == (fence, task, queue):
                continue
            self._said_unbegun[entry] = fence, task, queue
            logger.warning(
                "once: window %s of %r was published %d times, and no worker has begun it: does one consume the queue "
                "%s, and does it know the task %s as an OnceTask?",
                format_instant(job.start),
                entry,
                job.publishes,
                shown(queue),
                shown(task),
                extra=about("window_not_begun", WindowKey(entry, job.start), queue=queue, task=task),
            )

    def _gone_astray(self, job: Job, window: Window, why: str) -> None:
        if not job.row.astray:
            logger.error(
                "once: entry %r is untracked from now on: %s. Does its task's apply_async, or the scheduler's, keep "
                "the options 'task_id' and 'headers' that it is given?",
                window.entry,
                why,
                extra=about("entry_astray", window),
            )
        job.row.go_astray()

    def _producer(self) -> Any:
        """The base's producer; None where there is no connection."""
        try:
            return None if self._broker_down else self.producer
        except Exception as exc:  # noqa: BLE001  # every transport has errors of its own
            logger.debug("once: no producer: %s", exc)
            return None

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002  # the base's
        """As the base's; notes whether the message went out, and if not, whether the broker is to blame."""
        channel = getattr(producer, "channel", None)
        try:
            result = super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        except Exception as exc:
            # A connection that broke got a new channel, which kombu refuses to add to the batch of the old one.
            broke = getattr(producer, "channel", None) is not channel
            to_blame = broke or broker.is_to_blame(exc, producer)
            self._published = Published.UNSURE if to_blame else Published.IMPOSSIBLE
            self._hung = to_blame and broker.hangs(exc)
            raise
        self._published = Published.SENT
        return result

    def _reserve(self, row: Row) -> Any:
        """Advance the base's entry, for those who look at ``last_run_at``; returns the entry as it was."""
        entry = row.entry
        try:
            self.reserve(entry)
        except Exception:
            if not self._reserve_failed:
                self._reserve_failed = True
                logger.exception(
                    "once: entry %r: last_run_at not kept", row.name, extra=about("entry_not_advanced", entry=row.name)
                )
        else:
            self._reserve_failed = False
        row.entry = self.schedule.get(row.name, entry)
        return entry

    # -- the broker -------------------------------------------------------------------------------------------

    @cached_property
    def connection(self) -> Any:
        """As the base's, with publisher confirms, and never waiting for ever."""
        self._alarm = broker.Alarm()
        return self.app.connection_for_write(transport_options=broker.transport_options(self.app, self._alarm))

    def _ensure_connected(self) -> Any:
        # The base tries a hundred times, and nothing else happens meanwhile.
        return self.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)

    def broker_ready(self) -> bool:
        """Whether the broker answers: asked before each claim, and while it doesn't, once a second."""
        if self._broker_down and time.monotonic() - self._broker_seen < 1.0:
            return False
        answers = broker.is_alive(self.connection)
        self._broker_seen = time.monotonic()
        # While it takes no messages, this connection is the one that is told when it does again; then there is a new
        # one, on which no confirm of an earlier message can come.
        if not answers or (self._alarm.was_on and not self._alarm.on):
            self._drop_broker()
        alive = answers and not self._alarm.on
        if alive == self._broker_down:
            log = logger.warning if alive else logger.error
            if alive:
                what = "the broker answers again"
            elif answers:
                what = "the broker takes no messages, since its memory or its disk is full: nothing is claimed"
            else:
                what = "the broker doesn't answer, nothing is claimed"
            log("once: %s", what, extra=about("broker_back" if alive else "broker_away"))
        self._broker_down = not alive
        return alive

    def _drop_broker(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            broker.drop(connection)
