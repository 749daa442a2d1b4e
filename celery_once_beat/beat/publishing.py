"""How a window's message goes out: through Celery's own ``apply_entry``, over a connection that is known to live.

Decided here: which claimed windows there is still time to publish, and whether a publish that failed is tried again
(the broker was away) or can't succeed (its arguments can't be serialized, say). The scheduler holds ``claiming`` and
``recovery``, but inherits this part, which overrides methods of Celery's scheduler.

If the process dies, or sleeps for an hour:

- between claim and publish: the window is overdue after ``claim_lease``; another beat takes it. This may happen to
  SLICE windows at once, since their messages travel together;
- between publish and confirm: the same, and the worker refuses the second copy.

A beat that is still publishing when half of the lease is over renews its claims. If it was frozen, and another beat
has taken a window, it leaves that window to the other.

A broker that answers slowly, or not at all, holds a tick for ``_PATIENCE`` seconds at most, and the time that it takes
to connect. A message is tried once; recovery tries it again. An untracked window is closed at its claim, so nobody else
would publish it: if there was no time, it waits here, and nothing is claimed meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from celery_once_beat import signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import Logged, about, get_logger, log_window
from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.store import Claimed, Closed, Confirmation, ConfirmReply, Published, Taken, Unchanged
from celery_once_beat.windows import Window, WindowKey, format_instant, task_id, without_window
from celery_once_beat.wording import failure_words, printable

from . import broker
from .batches import BatchPublishError, batch
from .broker import BrokerConnection
from .entries import Entries
from .entry import BeatEntry
from .guard import guard
from .learned import LearnedMessages
from .outgoing import OutgoingMessages
from .server_clock import ServerClock

logger = get_logger(__name__)

#: Windows that are taken, published and confirmed together.
SLICE = 100
#: Seconds that a tick spends on publishing, at most: its beat has to be heard of before BEAT_TTL is over.
_PATIENCE = BEAT_TTL / 3


@dataclass(frozen=True)
class Job:
    """A window to publish: claimed, or with ``again`` taken since it was overdue."""

    entry: BeatEntry
    start: datetime
    claim: Claimed | Taken
    again: bool = False
    #: This is the second try of an untracked window, which no other beat would publish.
    tried: bool = False

    @property
    def tracked(self) -> bool:
        """Whether the window is open until a worker closes it; its entry may be untracked by now."""
        return self.claim.revision > 0

    @property
    def is_first(self) -> bool:
        """Whether this is a claimed window's first message, with only what each message of its entry has."""
        return self.claim.revision > 0 and not (self.again or self.tried or self.claim.ordered or self.claim.expires)

    @property
    def begun(self) -> bool:
        """Whether an execution of the window has begun before."""
        return self.claim.attempts > 0 or self.claim.retry > 0


class Sent(NamedTuple):
    """A window, and whether its message went out."""

    job: Job
    window: Window
    published: Published
    #: The queue that has it; None where that isn't known.
    queue: str | None = None


def _travels_alone(job: Job) -> bool:
    """Whether a window's message travels by itself. When a batch fails, all of it is published again.

    Untracked windows can't be republished; a message that is republished, or was refused, may be what broke the batch.
    """
    return job.again or not job.tracked or job.entry.refused is not None


class Publishing(BrokerConnection):
    """The part of the scheduler that publishes windows."""

    #: The server's time.
    clock: ServerClock
    entries: Entries

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: The publish that is going on; None outside of one.
        self._outgoing: OutgoingMessages | None = None
        #: The last message wasn't sent in time, and may be in the broker's socket.
        self._hung = False
        self._until = 0.0
        #: Untracked windows that this beat has claimed and not yet published.
        self._owed: list[Job] = []
        #: What was logged of an entry: what its options raise, that it sends several messages.
        self._logged = Logged(math.inf)
        self._learned = LearnedMessages(self)
        super().__init__(*args, **kwargs)

    @property
    def _patience(self) -> float:
        """Seconds for publishing what was claimed; what isn't published by then is given back."""
        return min(self.store.settings.publish_timeout / 2, _PATIENCE)

    def _publish(self, jobs: list[Job], claimed_at: float) -> None:
        """Publish windows claimed or taken at ``claimed_at`` (``clock.steady``), and confirm them slice by slice."""
        # First those that travel alone: among them the untracked ones, which nobody else would publish.
        left = deque(sorted(jobs, key=_travels_alone, reverse=True))
        self._until = claimed_at + self._patience
        held_since = claimed_at
        while left and steady() < self._until and not self.broker_outage.lasts:
            if steady() - held_since > self.store.settings.claim_lease / 2:
                held_since = steady()
                left = deque(self._still_held(left))
            if left:
                self._publish_slice(left)
        self._owed += (job for job in left if not job.tracked)
        # Any beat publishes those that are tracked, at doubling steps.
        self._confirm([self._confirmation(job, Published.UNSURE) for job in left if job.tracked])

    def _still_held(self, jobs: Iterable[Job]) -> list[Job]:
        """Renew the claims of what isn't published yet; return the jobs that are still this beat's."""
        untracked = [job for job in jobs if not job.tracked]
        held = [job for job in jobs if job.tracked]
        replies = self._confirm([self._confirmation(job, Published.NOT_YET) for job in held])
        return untracked + [job for job, reply in zip(held, replies, strict=True) if not isinstance(reply, Unchanged)]

    def _publish_owed(self) -> None:
        """Publish what there was no time for."""
        owed, self._owed = self._owed, []
        self._publish(owed, steady())

    def _publish_slice(self, left: deque[Job]) -> None:
        """Publish the first of the jobs, for half of a claim's lease at most, and confirm them."""
        until = min(self._until, steady() + self.store.settings.claim_lease / 2)
        sent: list[Sent] = []
        alone = _travels_alone(left[0])
        try:
            producer = None if alone else self._producer()
            with batch(producer, SLICE, self._alarm) as made, self._learned.slice(producer, made):
                while left and len(sent) < SLICE and steady() < until and _travels_alone(left[0]) == alone:
                    job = left.popleft()
                    sent.append(self._publish_one(job))
                    if sent[-1].published == Published.UNSURE:
                        if self._may_resend_untracked(job):
                            left.appendleft(replace(job, tried=True))
                        break  # a batch belongs to one connection, which may be another by now
        except BatchPublishError as exc:
            number = sum(each.published == Published.SENT for each in sent)
            text = "once: of %d messages it isn't known whether they were published: %s"
            logger.error(text, number, exc, extra=about("batch_failed"))
            self._try_broker(hung=broker.hangs(exc))
            impossible, unsure = Published.IMPOSSIBLE, Published.UNSURE
            sent = [each if each.published == impossible else each._replace(published=unsure) for each in sent]
        self._finish(sent)

    def _may_resend_untracked(self, job: Job) -> bool:
        """Whether an untracked window is published once more at once: nobody else would, nor refuse a copy."""
        return (
            not job.tracked  # recovery publishes those
            and not job.tried
            and not self._hung  # the broker may get the first one after all
            and not self._alarm.on  # it takes none
        )

    def _publish_one(self, job: Job) -> Sent:
        """Publish one window. Whatever its entry's options raise is that entry's trouble alone."""
        entry = job.entry
        window, published, queue = Window(entry.name, job.start, None), Published.IMPOSSIBLE, None
        with guard(partial(self._log_unsendable, job, "its message can't be made"), timed=False):
            window = entry.window(job.start, job.claim.attempts + 1, tracked=job.tracked)
            if job.again or job.tried:
                source = entry.source
            else:
                signals.window_claimed.send(sender=self, window=window)
                source = self._advance_source(entry)
            published, queue = self._send(source, window, job)
        return Sent(job, window, published, queue)

    def _log_unsendable(self, job: Job, what: str, why: str) -> None:
        """Log why an entry's messages can't be sent, each reason once."""
        name = job.entry.name
        if self._logged.is_new(name, why):
            key = WindowKey(name, job.start)
            logger.error("once: entry %r: %s: %s", name, what, why, extra=about("entry_unsendable", key))

    def on_published(self, entry: BeatEntry, window: Window, *, again: bool) -> None:
        """Called when a window's message is out; ``again``: it was recovered, or ordered. Does nothing. Must not raise.

        ``entry.source`` is the entry of the schedule.
        """

    def _finish(self, sent: list[Sent]) -> None:
        """Send the signals of what was published, and confirm it."""
        for job, window, published, _ in sent:
            if published == Published.SENT:
                signals.window_published.send(sender=self, window=window, again=job.again)
                if not job.entry.stored:
                    with guard(partial(self._log_unsendable, job, "on_published raised"), timed=False):
                        self.on_published(job.entry, window, again=job.again)
        self._confirm([self._confirmation(job, published, queue) for job, _, published, queue in sent if job.tracked])

    def _confirmation(self, job: Job, published: Published, queue: str | None = None) -> Confirmation:
        wait = job.entry.policy.start_timeout + self._delay(job)
        return Confirmation(WindowKey(job.entry.name, job.start), job.claim.revision, published, wait, queue)

    def _delay(self, job: Job) -> float:
        """Seconds until the job's message may run. If it is published again, its countdown began at the start."""
        return job.entry.timing.delay(self.clock.now(), job.start if job.again else None)

    def _confirm(self, confirmations: list[Confirmation]) -> list[ConfirmReply | OnceError]:
        """Confirm what was published. If the store doesn't answer, the next tick finds that out.

        What isn't confirmed is overdue after claim_lease, and the worker refuses the second copy.
        """
        try:
            replies = self.store.confirm_many(confirmations) if confirmations else []
        except StoreUnavailableError as exc:
            logger.debug("once: not confirmed: %s", exc)
            return [exc] * len(confirmations)
        for confirmation, reply in zip(confirmations, replies, strict=True):
            if isinstance(reply, Closed) and confirmation.published == Published.IMPOSSIBLE:
                key = confirmation.window
                what = "is failed: it can't be published, see the error above"
                log_window(logger, logging.ERROR, "window_unpublishable", key, what)
                window = Window(key.entry, key.start, None)
                signals.window_closed.send(sender=self, window=window, outcome="failed", count=1)
        return replies

    def _send(self, source: Any, window: Window, job: Job) -> tuple[Published, str | None]:
        """Publish through the base's ``apply_entry``, which logs and swallows a failure. In a batch, SENT: into it.

        Returns the queue too; None where that isn't known.
        """
        self._hung = False
        if self.broker_outage.lasts or self._alarm.on:
            return Published.UNSURE, None
        ordered = job.claim.ordered
        sent_as = task_id(self.store.settings.key_prefix, window.entry, window.start, ordered)
        run = window.entry if ordered is None else f"{window.entry}@{format_instant(ordered)}"
        outgoing = OutgoingMessages(sent_as, window, run)
        self._apply(source, window, job, outgoing)
        published = outgoing.published
        self._note_refusal(job, outgoing, published)
        self._warn_of_several(outgoing, window)
        if published == Published.SENT and outgoing.lost and window.tracked:
            self._warn_of_lost(outgoing, job, window)
            return Published.ASTRAY, None
        return published, outgoing.queue

    def _apply(self, source: Any, window: Window, job: Job, outgoing: OutgoingMessages) -> None:
        """Have the base publish a window; ``outgoing`` watches its messages."""
        producer = self._producer()
        if producer is not None and job.is_first:
            outgoing.prepared = self._learned.prepare(source, outgoing, self._time_left)
        to_send = source if outgoing.prepared else self._entry_to_send(source, window, job, outgoing)
        if producer is None:
            return
        self._outgoing = outgoing
        with guard(partial(self._log_raised, job), timed=False), self._alarm:
            if outgoing.prepared:
                self.apply_entry(to_send, producer=producer)
            else:
                with outgoing.watched(), self._learned.learning(source, outgoing) if job.is_first else nullcontext():
                    self.apply_entry(to_send, producer=producer)
        self._outgoing = None

    @property
    def _time_left(self) -> float:
        """Seconds for which a message may wait for its confirm: a broker that confirms none must not hold a beat."""
        return max(self._until - steady(), 1.0)

    def _note_refusal(self, job: Job, outgoing: OutgoingMessages, published: Published) -> None:
        """Note whether the broker is away, or has refused the messages of this entry alone."""
        self._hung = outgoing.hangs
        if published != Published.UNSURE:
            job.entry.refused = None
        elif self._try_broker(hung=self._hung) and _travels_alone(job):  # else another message may be to blame
            job.entry.count_refusal(steady(), self.store.settings.publish_timeout, outgoing.trouble, again=job.again)
            self.entries.failing.add(job.entry.name)

    def _log_raised(self, job: Job, why: str) -> None:
        """Note that ``apply_entry`` has raised: a message that is out by then is out all the same."""
        assert self._outgoing is not None
        self._outgoing.results.add(Published.IMPOSSIBLE)
        self._log_unsendable(job, "apply_entry raised", why)

    def _warn_of_lost(self, outgoing: OutgoingMessages, job: Job, window: Window) -> None:
        """Log once that workers don't know an entry's windows. If a message went out, later ones are untracked too."""
        if outgoing.any_seen and not job.entry.astray:
            text = (
                "once: entry %r is untracked from now on: %s. Does its task's apply_async, or the scheduler's, "
                "keep the options 'task_id' and 'headers' that it is given?"
            )
            logger.error(text, window.entry, outgoing.lost, extra=about("entry_astray", window))
        if outgoing.any_seen:
            job.entry.mark_untracked()
        elif self._logged.is_new((window.entry, "unsent")):
            what = "is untracked: no message was sent for it, the task's apply_async, or the scheduler's, returned none"
            log_window(logger, logging.WARNING, "window_unsent", window, what)

    def _warn_of_several(self, outgoing: OutgoingMessages, window: Window) -> None:
        if outgoing.several and self._logged.is_new((window.entry, "several")):
            text = (
                "once: entry %r sends several messages for each window: each runs once, and only the first is sent "
                "again if it is lost (docs/own-scheduler.md)"
            )
            logger.warning(text, window.entry, extra=about("entry_sends_several", window))

    def _entry_to_send(self, source: Any, window: Window, job: Job, outgoing: OutgoingMessages) -> Any:
        """Return Celery's entry with the window's options."""
        options = {key: value for key, value in (source.options or {}).items() if key != "once"}
        # Celery writes into the headers of the options: a copy of its own for each message.
        options["headers"] = {**without_window(options.get("headers")), **outgoing.headers}
        options["task_id"] = outgoing.task_id
        options["confirm_timeout"] = self._time_left
        options["retry"] = False
        if job.again and options.get("countdown"):
            options["countdown"] = self._delay(job)
        # Celery would count the seconds from this machine's time.
        if (expires := job.claim.expires or job.entry.timing.expires_at(self.clock.now())) is not None:
            options["expires"] = expires
        if job.claim.retry:
            options["retries"] = job.claim.retry
        # An attribute more on the entry would break next(entry), and copy() loses what its __reduce__ leaves out.
        entry = object.__new__(type(source))
        entry.__dict__.update(vars(source), options=options)
        if not window.entry.isprintable():
            entry.name = repr(window.entry)  # Celery logs it unquoted: a newline would start a line of its own
        return entry

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002  # the base's
        """As the base's; notes whether the message went out, and if not, whether the broker is to blame."""
        outgoing = self._outgoing
        if outgoing is None:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        channel, sent = getattr(producer, "channel", None), outgoing.sent
        try:
            if outgoing.prepared:
                result = outgoing.prepared()
                outgoing.promised = True
                self._tasks_since_sync += 1  # type: ignore[attr-defined]  # as the base does
                if self.should_sync():
                    self._do_sync()  # type: ignore[attr-defined]
            else:
                result = super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        except Exception as exc:
            if outgoing.sent > sent and outgoing.all_sent:  # raised behind the message, by a user's code
                outgoing.results.add(Published.SENT)
                raise
            # After a connection broke there is a new channel, and kombu refuses to add to the old one's batch.
            broke = getattr(producer, "channel", None) is not channel
            to_blame = broke or broker.is_to_blame(exc, producer)
            outgoing.results.add(Published.UNSURE if to_blame else Published.IMPOSSIBLE)
            outgoing.hangs |= to_blame and broker.hangs(exc)
            outgoing.trouble = printable(failure_words(exc, "message"))
            confirms, cause = getattr(channel, "once_confirms", None), exc.__context__ or exc
            if confirms and confirms.are_together and getattr(cause, "method_name", "") == "Basic.publish":
                raise BatchPublishError(f"not sent, since an earlier message has failed: {cause}") from cause
            raise
        outgoing.results.add(Published.SENT)
        outgoing.promised |= getattr(result, "id", None) == outgoing.task_id
        return result

    def _advance_source(self, entry: BeatEntry) -> Any:
        """Advance Celery's entry, for displays of ``last_run_at``; returns it as it was."""
        source = entry.source
        if entry.stored:  # it is none of the base's
            return source
        with guard(partial(self._log_not_advanced, entry.name), timed=False):
            self.reserve(source)
            entry.set_source(self.schedule.get(entry.name, source))
            self._logged.end((entry.name, "last_run_at"))
        return source

    def _log_not_advanced(self, name: str, why: str) -> None:
        if self._logged.is_new((name, "last_run_at")):
            extra = about("entry_not_advanced", entry=name)
            logger.error("once: entry %r: last_run_at not kept: %s", name, why, extra=extra)
