"""How a window's message goes out: through Celery's own ``apply_entry``, over a connection that is known to live.

Decided here: which claimed windows there is still time to publish, and whether a publish that failed is to be tried
again (the broker was away) or never can be (its arguments, say). Inherited by the scheduler, not held by it as
``claiming`` and ``recovery`` are, since it stands between the base's own methods.

What if the process dies, or sleeps for an hour:

- between claim and publish: the window is overdue after ``publish_timeout``; another beat takes it. So are up to SLICE
  windows whose messages waited for each other;
- between publish and confirm: the same, and the worker refuses the second copy.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from celery.beat import Scheduler
from celery.utils.log import get_logger

from . import broker, signals
from .clock import steady
from .errors import StoreUnavailableError
from .logs import about
from .replies import Closed
from .requests import Confirmation, WindowKey
from .rows import Row
from .store import Store
from .windows import Window, format_instant, task_id, with_window

__all__ = ("SLICE", "Job", "Publishing")

logger = get_logger(__name__)

#: Windows that are taken, published and confirmed together.
SLICE = 100


class Job(NamedTuple):
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


class Sent(NamedTuple):
    """A window that was published, or not: what :meth:`Publishing._send` says of it."""

    job: Job
    window: Window
    published: int


def _alone(job: Job) -> bool:
    """Whether a window's message travels by itself: when a batch fails, all that were in it are published again.

    Untracked windows can't be. One that is published again may be what a batch failed for.
    """
    return job.again or not job.row.tracked


class Publishing(Scheduler):
    """The part of the scheduler that publishes; the schedule and who claims what are the subclass's."""

    _once: Store

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._published = 0
        self._reserve_failed = False
        self._broker_down = False
        self._broker_seen = 0.0
        super().__init__(*args, **kwargs)

    def _publish(self, jobs: list[Job], claimed_at: float) -> None:
        """Publish windows claimed or taken at ``claimed_at`` (``clock.steady``), and confirm them slice by slice."""
        # Untracked windows first: they are closed at their claim, nothing brings back what isn't published.
        left = deque(sorted(jobs, key=_alone, reverse=True))
        while left:
            self._publish_slice(left, claimed_at)

    def _publish_slice(self, left: deque[Job], claimed_at: float) -> None:
        """Publish the first of the jobs that are left, and confirm them.

        What there is no time for is left to recovery: after ``publish_timeout`` another beat may have taken it.
        """
        timeout = self._once.settings.publish_timeout
        sent: list[Sent] = []
        alone = _alone(left[0])
        with broker.batch(None if alone else self._producer(), SLICE) as batch:
            began = time.monotonic()
            while left and len(sent) < SLICE and time.monotonic() - began <= timeout / 4 and _alone(left[0]) == alone:
                job = left.popleft()
                row = job.row
                if row.tracked and steady() - claimed_at > timeout / 2:
                    continue
                window = row.window(job.start, job.attempt)
                if job.again:
                    entry = row.entry
                else:
                    signals.window_claimed.send(sender=self, window=window)
                    entry = self._reserve(row)
                sent.append(Sent(job, window, self._send(entry, window, job)))
                if not sent[-1].published and not self._broker_down:
                    break  # its connection has gone, and is there again: a batch belongs to one connection
        if batch.failed:
            logger.error(
                "once: %d messages weren't published, or perhaps not: %s",
                sum(published == 1 for _, _, published in sent),
                batch.failed,
                extra=about("batch_failed"),
            )
            self.broker_ready()
            sent = [Sent(job, window, min(published, 0)) for job, window, published in sent]
        for job, window, published in sent:
            if published == 1:
                signals.window_published.send(sender=self, window=window, again=job.again)
        self._confirm(
            [
                Confirmation(WindowKey(job.row.name, job.start), job.turn, published, self._start_timeout(job.row))
                for job, _, published in sent
                if job.row.tracked
            ]
        )

    def publish_by_order(self, row: Row, start: datetime, turn: int, ordered: datetime | None) -> int:
        """Publish a window that was opened by order, and confirm it; returns as :meth:`_send`."""
        window = row.window(start)
        published = self._send(row.entry, window, Job(row, start, turn, None, again=True, ordered=ordered))
        if published == 1:
            signals.window_published.send(sender=self, window=window, again=True)
        self._confirm([Confirmation(WindowKey(row.name, start), turn, published, self._start_timeout(row))])
        return published

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
            if isinstance(reply, Closed):
                key = confirmation.window
                logger.error(
                    "once: window %s of %r is failed: it can't be published, see the error above",
                    format_instant(key.start),
                    key.entry,
                    extra=about("window_unpublishable", key),
                )

    def _send(self, entry: Any, window: Window, job: Job) -> int:
        """Publish through the base's ``apply_entry``, which logs and swallows a failure.

        Returns 1 if the message went out, or into the batch; 0 if not or perhaps not; -1 if it can't: the broker isn't
        to blame.
        """
        if self._broker_down:
            return 0
        options = {key: value for key, value in (entry.options or {}).items() if key != "once"}
        options["task_id"] = task_id(self._once.settings.key_prefix, window.entry, window.start, job.ordered)
        # Celery writes into the headers of the options: a copy of its own for each message.
        options["headers"] = with_window(options.get("headers"), window, options["task_id"])
        # A broker that takes messages and confirms none (RabbitMQ in its memory alarm) must not hold a beat.
        options.setdefault("confirm_timeout", self._once.settings.publish_timeout)
        if job.expires is not None:
            options["expires"] = job.expires
        if job.retry:
            options["retries"] = job.retry
        # An attribute more on the entry would break next(entry), and copy() loses what its __reduce__ leaves out.
        message = object.__new__(type(entry))
        message.__dict__.update(vars(entry), options=options)
        if not window.entry.isprintable():
            message.name = repr(window.entry)  # Celery logs it as it is: no line of its own for what follows a newline
        self._published = 0
        producer = self._producer()
        if producer is not None:
            self.apply_entry(message, producer=producer)
        if self._published == 0:
            self.broker_ready()
        return self._published

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
            self._published = 0 if broke or broker.is_to_blame(exc, producer) else -1
            raise
        self._published = 1
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

    def _start_timeout(self, row: Row) -> float:
        countdown = (row.entry.options or {}).get("countdown")
        return row.policy.start_timeout + (countdown if isinstance(countdown, (int, float)) else 0)

    # -- the broker -------------------------------------------------------------------------------------------

    @cached_property
    def connection(self) -> Any:
        """As the base's, with publisher confirms, and never waiting for ever."""
        return self.app.connection_for_write(transport_options=broker.transport_options(self.app))

    def _ensure_connected(self) -> Any:
        # The base tries a hundred times, and nothing else happens meanwhile.
        return self.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)

    def broker_ready(self) -> bool:
        """Whether the broker answers: asked before each claim, and while it doesn't, once a second."""
        if self._broker_down and time.monotonic() - self._broker_seen < 1.0:
            return False
        alive = broker.is_alive(self.connection)
        self._broker_seen = time.monotonic()
        if alive == self._broker_down:
            log = logger.warning if alive else logger.error
            log(
                "once: the broker answers again" if alive else "once: the broker doesn't answer, nothing is claimed",
                extra=about("broker_back" if alive else "broker_away"),
            )
        self._broker_down = not alive
        if not alive:
            self._drop_broker()
        return alive

    def _drop_broker(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        try:
            if connection is not None:
                connection.release()
        except Exception as exc:  # noqa: BLE001  # it is broken: whatever it says
            logger.debug("once: the broken connection couldn't be released: %s", exc)
