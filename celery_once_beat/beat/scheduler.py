"""The beat scheduler: claims windows, publishes their messages, and sees to what is overdue.

Any number of beats run it side by side. A tick is one of: a look at what is overdue (``recovery``), a chunk of claims
(``claiming``) with the publishes that they win (``publishing``). Here is when, and what is done while Redis or the
broker is away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from celery.beat import Scheduler
from celery.utils.log import get_logger
from kombu.utils.url import maybe_sanitize_url

from celery_once_beat import __version__, signals
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.identity import beat_name
from celery_once_beat.logs import about
from celery_once_beat.rules import checks
from celery_once_beat.settings import Settings, describe_app
from celery_once_beat.store import BeatReport, Closed, Lookup, Published, Store
from celery_once_beat.windows import Window, WindowKey, format_instant
from celery_once_beat.wording import shown

from . import broker
from .claiming import CHUNK, Claiming
from .entries import Rows
from .publishing import SLICE, Job, Publishing
from .recovery import Recovery
from .results import Results
from .server_clock import ServerClock
from .stopping import held_back

__all__ = ("OnceScheduler", "OnceSchedulerMixin")

logger = get_logger(__name__)

#: Bases whose ``schedule`` is known to hold every entry, and whose entries' own ``is_due`` says nothing more.
_FIT = {
    "celery.beat.Scheduler",
    "celery.beat.PersistentScheduler",
    "sqlalchemy_celery_beat.schedulers.DatabaseScheduler",
}

_INSTEAD = (
    "Use 'once', 'once-django', or a base whose entries are all in its schedule (docs/adopting.md); "
    "if this one is such, set base_is_fit = True"
)

#: Seconds between two tries to reach Redis or the broker: at first, at most.
_BACKOFF = (0.5, 5.0)


class OnceSchedulerMixin(Publishing):
    """For any ``celery.beat.Scheduler``: put it first among the bases.

    ``schedule``, ``reserve``, ``apply_entry`` and ``sync`` stay the base's; when a window is due, and whether this
    beat publishes it, is decided here. ``last_run_at`` and ``total_run_count`` are kept for people to look at.
    """

    #: For the author of a base: its ``schedule`` always holds every entry that is to run, and when one is due its
    #: schedule says, not an ``is_due`` of its own.
    base_is_fit = False
    #: Tells others in the process (see ``task``) that this scheduler isn't a stock one.
    claims_windows = True
    #: celery-redbeat asks the scheduler of every beat for it, where it is imported: by a project that has moved, or by
    #: Sentry's SDK, which does if it can. No such lock here.
    lock_key: str | None = None
    _heap: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._ticking = False
        self._changed = True
        self._seen_at: datetime | None = None
        self._no_heap: list[Any] = []
        self._store_down_since: float | None = None
        #: Entries that have moved on without the store.
        self._without_store: set[str] = set()
        self._uncertain = False
        self._checked = False
        self._backoff = _BACKOFF[0]
        self._broken = ""
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Check the settings and build the schedule; asks neither Redis nor the broker."""
        unfit = self._unfit()
        if unfit:
            logger.critical("once: %s", unfit, extra=about("scheduler_unfit"))
            raise SystemExit(os.EX_CONFIG)
        try:
            self._once = Store(Settings.from_app(self.app))
        except SettingError as exc:
            logger.critical("once: %s", exc, extra=about("setting_wrong"))
            raise SystemExit(os.EX_CONFIG) from None
        self._clock = ServerClock()
        self._results = Results(self.app)
        self._beat_id = beat_name()
        self._recovery = Recovery(self._once, self._beat_id, self._clock, self, describe_app(self.app))
        super().setup_schedule()
        eager = bool(self.app.conf.task_always_eager)
        self._rows = Rows(self._beat_id, self._once.settings, self.app.tasks, eager=eager)
        self._claiming = Claiming(self._once, self._rows, self._clock, self._beat_id)

    @classmethod
    def _unfit(cls) -> str:
        """Why windows can't be those of the base's schedule; '' where they can."""
        if cls.base_is_fit:
            return ""
        behind: tuple[Any, ...] = cls.__mro__[cls.__mro__.index(OnceSchedulerMixin) + 1 :]
        for base in behind:
            if f"{base.__module__}.{base.__qualname__}" in _FIT:
                break
            if not {"schedule", "get_schedule"}.isdisjoint(vars(base)):
                return (
                    f"{base.__name__} can't stand behind OnceSchedulerMixin: nobody knows whether its schedule holds "
                    f"every entry all the time. {_INSTEAD}"
                )
        entry: Any = cls.Entry
        if entry.is_due is not base.Entry.is_due:
            return (
                f"the entries of {cls.__name__} can't be those of OnceSchedulerMixin: {entry.__name__} decides by an "
                f"is_due of its own whether it is due, which nobody would ask. {_INSTEAD}"
            )
        return ""

    # -- changes of the schedule ------------------------------------------------------------------------------

    def add(self, **kwargs: Any) -> Any:
        """As the base's; the rows are made anew at the next tick."""
        self._changed = True
        return super().add(**kwargs)

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """As the base's; the rows are made anew at the next tick."""
        self._changed = True
        super().update_from_dict(dict_)

    def merge_inplace(self, b: dict[str, Any]) -> None:
        """As the base's; the rows are made anew at the next tick."""
        self._changed = True
        super().merge_inplace(b)

    # -- the tick ---------------------------------------------------------------------------------------------

    def tick(self, *_: Any, **__: Any) -> float:
        """Do what is due; returns the seconds until something is due again. Never raises for what is outside."""
        self._ticking = True
        try:
            self._refresh()
            return self._tick()
        except OnceError as exc:
            return self._store_away(exc)
        except Exception as exc:  # noqa: BLE001  # what the base raises, or what nobody has thought of
            return self._tick_failed(exc)
        finally:
            self._ticking = False

    def _tick_failed(self, error: Exception) -> float:
        """Go on at the next tick, from what the store knows: a beat that ends is of no use to anybody."""
        why = shown(error)
        if why != self._broken:
            self._broken = why
            logger.error(
                "once: a tick failed: %s. If that isn't the base scheduler's, please report it",
                why,
                exc_info=error,
                extra=about("tick_failed", owner=self._beat_id),
            )
        self._rows.restart()
        return self._again_in()

    def _again_in(self) -> float:
        delay, self._backoff = self._backoff, min(self._backoff * 2, _BACKOFF[1])
        return delay

    def _refresh(self) -> None:
        seen_at = self._schedule_seen_at()
        schedule = self.schedule
        # A base that reloads its schedule says so by putting another heap in the place of this one.
        if self._changed or self._heap is not self._no_heap or self._rows.changed(schedule):
            self._changed, self._heap = False, self._no_heap
            self._claiming.left(self._rows.refresh(schedule, self._seen_at))
            if self._rows.unloaded():
                self._recovery.hurry()
        self._seen_at = seen_at

    def _schedule_seen_at(self) -> datetime | None:
        """When the schedule was last known to be the one that is in force; None: not yet read. For bases that poll."""
        return self._clock.now()

    def _tick(self) -> float:
        away = None
        if not self._recovery.due_in():  # always so after an outage: a tick that asks nothing can't say that it is over
            away = self._look()
        delay = self._claim_due()
        if away is not None:
            raise away
        if not self._uncertain:
            self._store_back()
        if self._rows.unloaded():  # there wasn't time for all, or a claim said that it is needed
            self._recovery.hurry()
            return 0.0
        return delay

    def _look(self) -> StoreUnavailableError | None:
        """Say that this beat lives and which definitions it has; see to what is overdue.

        Returns why some of it couldn't be done: one node of a cluster doesn't answer, and the others' part goes on.
        """
        overdue = self._recovery.look(self._report())
        # A beat that wins nothing has no other write that says whether replicas are back.
        self._uncertain &= not self._recovery.certain
        if self._recovery.forgotten:
            self._rows.restart()
        self._check()
        self._rows.wake(self._clock.now())
        away = self._recovery.away
        try:
            self._claiming.load(self._recovery.alive, self._recovery.asked_at)
        except StoreUnavailableError as exc:
            away = exc
        away = self._close_by_result() or away
        if overdue and self.broker_ready():
            away = self._recover(overdue) or away
        return away

    def _close_by_result(self) -> StoreUnavailableError | None:
        """End windows that workers have executed which don't know windows, and whose result says so.

        Returns why some of it couldn't be done; that is left to the next look.
        """
        found = self._results.found()
        for position, (key, outcome) in enumerate(found):
            try:
                reply = self._once.close_by_result(key, self._beat_id, outcome)
            except StoreUnavailableError as exc:
                self._results.put_back([*found[position + 1 :], found[position]])
                return exc
            except OnceError as exc:  # who takes it has said so
                logger.debug("once: %s", exc)
                continue
            if isinstance(reply, Closed):
                logger.warning(
                    "once: window %s of %r is %s, as its result says: no worker has begun it as a window",
                    format_instant(key.start),
                    key.entry,
                    outcome,
                    extra=about("window_by_result", key, outcome=outcome, owner=self._beat_id),
                )
                signals.window_closed.send(
                    sender=self, window=Window(key.entry, key.start, None), outcome=outcome, count=1
                )
        return None

    def _check(self) -> None:
        """Warn once of what is set up so that the promise holds by luck; ``celery once doctor`` looks at more."""
        if self._checked:
            return
        settings, conf = self._once.settings, self.app.conf
        info, trouble = Lookup(self._once).server()
        self._checked = True
        findings = [] if trouble else list(checks.server_findings(info, settings))
        findings += checks.address_findings(row.name for row in self._rows)
        leases = {task: getattr(self.app.tasks.get(task), "once_lease", None) for task in self._rows.tasks}
        known = [("once_beat_lease", settings.lease), *((task, lease) for task, lease in leases.items() if lease)]
        transport = str(self.app.connection_for_write().transport_cls)  # not this beat's own, which isn't made yet
        findings += checks.lease_findings(transport, conf.broker_transport_options or {}, known)
        everywhere = broker.broadcast_entries(self.app, (row.entry for row in self._rows if row.tracked))
        findings += checks.delivery_findings(transport, everywhere)
        wrong = [f"{finding.check}: {finding.found}" for finding in findings if finding.verdict == "warn"]
        if wrong:
            logger.warning(
                "once: %s. 'celery once doctor' says what to set", "; ".join(wrong), extra=about("setup_doubtful")
            )

    def _report(self) -> BeatReport:
        """What people are told of this beat."""
        now, due = self._clock.now(), self._rows.next_due()
        lag = max((now - due).total_seconds() if due else 0.0, self._claiming.behind, 0.0)
        return BeatReport(self._clock.offset, lag, len(self._rows), self._rows.untracked, __version__)

    def _claim_due(self) -> float:
        """Claim and publish a chunk of what is due; returns the seconds until the next tick."""
        if self._is_due():
            if not self.broker_ready():
                return min(self._recovery.due_in(), 1.0) or 0.1
            self._claim_slices()
        next_due, now = self._rows.next_due(), self._clock.now()
        assert self.max_interval is not None  # the base has a default
        wait = float(self.max_interval)
        if next_due is not None:
            wait = min(wait, (next_due - now).total_seconds())
        return max(min(wait, self._recovery.due_in()), 0.0)

    def _is_due(self) -> bool:
        next_due = self._rows.next_due()
        return bool(self._owed) or (next_due is not None and next_due <= self._clock.now())

    def _claim_slices(self) -> None:
        until = time.monotonic() + self._patience
        for _ in range(CHUNK // SLICE):
            with held_back():
                if self._owed:
                    self._publish_owed()
                else:
                    self._claim(self._clock.now())
            if self._broker_down or time.monotonic() > until or not self._is_due():
                return

    def _claim(self, now: datetime) -> None:
        claims = self._claiming.claim(self.schedule, now)
        self._changed |= claims.replaced
        for row in claims.lost:
            self._reserve(row)
        for window, count in claims.missed:
            signals.window_missed.send(sender=self, window=window, count=count)
            signals.window_closed.send(sender=self, window=window, outcome="missed", count=count)
        self._publish(claims.won, claims.sent)
        if claims.away is not None:
            raise claims.away

    # -- recovery ---------------------------------------------------------------------------------------------

    def _recover(self, overdue: list[WindowKey]) -> StoreUnavailableError | None:
        """Take and publish what is overdue, as much as there is time for until the next look.

        Returns why some of it couldn't be taken.
        """
        overdue = list(self._not_refused(overdue))
        began, away = time.monotonic(), None
        for position in range(0, len(overdue), SLICE):
            if time.monotonic() - began > self._once.settings.recovery_interval:
                break
            with held_back():
                away = self._recover_slice(overdue[position : position + SLICE]) or away
        return away

    def _recover_slice(self, overdue: list[WindowKey]) -> StoreUnavailableError | None:
        sent = steady()
        recovered = self._recovery.take(overdue, self._rows.get)
        jobs = []
        for key, taken in recovered.taken:
            row = self._rows.get(key.entry)
            assert row is not None
            attempt = taken.attempts + 1
            job = Job(row, key.start, taken.turn, taken.expires, taken.retry, attempt, taken.ordered, again=True)
            jobs.append(replace(job, publishes=taken.publishes))
            logger.warning(
                "once: window %s of %r is overdue, to be published again",
                format_instant(key.start),
                key.entry,
                extra=about("window_overdue", key, attempt=attempt, owner=self._beat_id),
            )
            signals.window_overdue.send(sender=self, window=row.window(key.start, attempt))
        self._publish(jobs, sent)
        return recovered.away

    def _not_refused(self, overdue: list[WindowKey]) -> Iterator[WindowKey]:
        """Leave out what the broker would refuse too, for a missing exchange, say, or a queue of another type.

        Of an entry whose last message it refused, only the oldest window is tried: once that goes out, all are.
        """
        now = time.monotonic()
        oldest: dict[str, WindowKey] = {}
        for key in overdue:
            row = self._rows.get(key.entry)
            if row is None or not row.refusals:
                yield key
            elif now >= row.refused_until:
                oldest[key.entry] = min(key, oldest.get(key.entry, key), key=lambda window: window.start)
        yield from oldest.values()

    # -- what is outside --------------------------------------------------------------------------------------

    def _store_away(self, error: OnceError) -> float:
        self._recovery.hurry()
        self._uncertain = isinstance(error, UncertainWriteError)
        if self._store_down_since is None:
            self._store_down_since = time.monotonic()
            logger.error(
                "once: nothing is claimed until Redis can be used again: %s",
                error,
                extra=about("store_away", owner=self._beat_id),
            )
        if self._owed and self.broker_ready():  # closed at their claim: nothing of them is for the store
            with held_back():
                self._publish_owed()
        if self._once.settings.publish_without_store:
            self._publish_without_store()
        else:
            self._rows.doubt()
        return self._again_in()

    def _store_back(self) -> None:
        if self._store_down_since is not None:
            logger.warning(
                "once: Redis can be used again, after %.1f s",
                time.monotonic() - self._store_down_since,
                extra=about("store_back", owner=self._beat_id),
            )
            self._store_down_since = None
            # What was published meanwhile is for the store to say; of all others the cursors are known.
            for name in self._without_store:
                self._rows.reload(name)
            self._without_store.clear()
        self._backoff = _BACKOFF[0]
        self._broken = ""

    def _publish_without_store(self) -> None:
        """Publish what is due without a claim; workers refuse what other beats publish of it too."""
        self._until = steady() + self._patience
        now = self._clock.now()
        for row in self._rows.unloaded():
            row.since = row.since or now
            self._without_store.add(row.name)
            self._rows.advance(row, now, now)
        if not self.broker_ready():
            return
        for row in self._rows.due(now, SLICE):
            if steady() > self._until:
                self._rows.put(row)
                continue
            with self._rows.alone(row, now):
                step = row.step(now)
                if step is not None and step.run:
                    window = row.window(step.start)
                    if self._send(self._reserve(row), window, Job(row, step.start, 0, None)) == Published.SENT:
                        signals.window_published.send(sender=self, window=window, again=False)
                self._without_store.add(row.name)
                assert row.cursor is not None
                self._rows.advance(row, step.start if step else row.cursor if row.looking else now, now)

    def close(self) -> None:
        """As the base's, and say that this beat ends. Celery calls it within the signal handler and once more.

        Within the handler it may have interrupted a round trip: connections aren't taken from under it. The second
        call finds it unwound.
        """
        if self._ticking:
            return
        self._leave()
        if "_results" in vars(self):  # not where it was built to be looked at
            self._results.stop()
        super().close()

    def _leave(self) -> None:
        if self._owed:
            logger.error(
                "once: %d untracked windows weren't published: the broker took too long",
                len(self._owed),
                extra=about("windows_owed", count=len(self._owed)),
            )
            self._owed = []
        if self._store_down_since is not None or not hasattr(self, "_once"):
            return
        try:
            self._once.leave(self._beat_id)
            self._once.close()
        except OnceError as exc:
            logger.debug("once: left without saying so: %s", exc)

    @property
    def info(self) -> str:
        """For beat's banner: where windows are coordinated, without the password."""
        try:
            settings = Settings.from_app(self.app)
        except SettingError as exc:
            return f"    . once -> {exc}"
        servers = ";".join(maybe_sanitize_url(url) for url in settings.redis_url.split(";"))
        return f"    . once -> {servers} {settings.key_prefix}"


class OnceScheduler(OnceSchedulerMixin, Scheduler):
    """``celery beat -S once``: the schedule of ``beat_schedule``, without a file of its own."""

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """As the base's, without what is no entry."""
        try:
            super().update_from_dict(dict_)
        except Exception:  # noqa: BLE001  # whatever a stranger's entry raises
            super().update_from_dict(self._without_wrong(dict_))

    def merge_inplace(self, b: dict[str, Any]) -> None:
        """As the base's, without what is no entry."""
        try:
            super().merge_inplace(b)
        except Exception:  # noqa: BLE001  # the same; what is merged by then is merged once more
            super().merge_inplace(self._without_wrong(b))

    def _without_wrong(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Return the entries from which the base can make its own; it would end at the first one that isn't so."""
        right = {}
        for name, entry in entries.items():
            try:
                self._maybe_entry(name, entry)  # type: ignore[attr-defined]  # celery-types lacks it
            except Exception as exc:  # noqa: BLE001  # whatever a stranger's entry raises
                logger.error(
                    "once: entry %s is left out: %s",
                    shown(name),
                    shown(exc),
                    extra=about("entry_wrong", entry=name),
                )
            else:
                right[name] = entry
        return right
