"""The beat scheduler: claims windows, publishes their messages, and recovers what is overdue.

Any number of beats run it side by side. A tick sweeps for overdue windows if the next sweep is due (``recovery``). Then
it claims a chunk of the windows that are due (``claiming``), and publishes those that it won (``publishing``). This
module decides when each of that happens, and what a beat does while Redis or the broker is away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from kombu.utils.url import maybe_sanitize_url

from celery_once_beat import __version__, signals
from celery_once_beat.backoff import Backoff
from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, SettingError, StoreUnavailableError, UncertainWriteError, from_signal
from celery_once_beat.features import parts
from celery_once_beat.identity import beat_name
from celery_once_beat.logs import Outage, about, ending_if_wrong, get_logger
from celery_once_beat.settings import Settings, describe_app, name_broker
from celery_once_beat.store import BeatReport, check_client, new_store
from celery_once_beat.windows import WindowKey
from celery_once_beat.wording import failure_words, shown

from .claiming import CHUNK, Claiming
from .entries import Entries
from .guard import guard
from .loading import Loading
from .publishing import SLICE, Publishing
from .recovery import Recovery
from .server_clock import ServerClock
from .setup_check import SetupCheck
from .sources import Source, log_left_out
from .stopping import held_back

logger = get_logger(__name__)

#: Bases whose ``schedule`` holds every entry, and whose entries are due by their schedules alone.
_FIT = {
    "celery.beat.Scheduler",
    "celery.beat.PersistentScheduler",
    "sqlalchemy_celery_beat.schedulers.DatabaseScheduler",
}

_INSTEAD = (
    "Use 'once', 'once-django', or a base whose entries are all in its schedule (docs/own-scheduler.md); "
    "if this one is such, set base_is_fit = True"
)


class OnceSchedulerMixin(Publishing):
    """For any ``celery.beat.Scheduler``: put it first among the bases.

    ``schedule``, ``reserve``, ``apply_entry`` and ``sync`` stay the base's. The mixin decides when a window is due, and
    whether this beat publishes it. It keeps ``last_run_at`` and ``total_run_count``, which are only displayed.

    A subclass may override the hooks ``poll_schedule``, ``on_entries_changed``, ``on_sweep``, ``on_published`` and
    ``on_close``, and what Celery's own scheduler has. All of them run in beat's thread, so none may wait for long.
    """

    #: Set it to True if ``schedule`` always holds every entry, and entries have no ``is_due`` of their own.
    base_is_fit = False
    #: Tells it from a stock scheduler, which would send everything once more.
    claims_windows = True
    #: What this beat knows of each entry.
    entries: Entries
    #: This beat's name; each start makes a new one.
    beat_id: str
    #: celery-redbeat asks every beat's scheduler for it, wherever it is imported (by Sentry's SDK, say). There is none.
    lock_key: str | None = None
    _heap: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._ticking = False
        #: Celery's signal handler has closed this scheduler, and raised SystemExit, which may have been swallowed.
        self._closed = False
        self._changed = True
        #: When the schedule was last known to be in force.
        self._known_at: datetime | None = None
        #: Just before it was last polled, by ``clock.steady``.
        self._polled = steady()
        self._no_heap: list[Any] = []
        self._uncertain = False
        #: Between two tries to reach Redis or the broker.
        self._backoff = Backoff(0.5, 5.0)
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Check the settings and build the schedule; asks neither Redis nor the broker."""
        unfit = self._unfit()
        if unfit:
            logger.critical("once: %s", unfit, extra=about("scheduler_unfit"))
            raise SystemExit(os.EX_CONFIG)
        with ending_if_wrong(logger):
            self.store = new_store(self.app)
            check_client(self.store.settings)
        self.clock = ServerClock()
        self.beat_id = beat_name()
        outage = partial(Outage, logger, owner=self.beat_id)
        self._store_outage = outage(("store_away", "store_back"), "Redis can be used again")
        #: Ticks fail.
        self._failing = outage(("tick_failed", "ticks_work"), "ticks work again")
        super().setup_schedule()
        eager = bool(self.app.conf.task_always_eager)
        self.entries = Entries(self.beat_id, self.store.settings, self.app.tasks, eager=eager)
        self.entries.parts = [*(module.Part(self) for module in parts("beat")), SetupCheck(self)]
        app = describe_app(self.app)
        broker_name = name_broker(self.app.connection_for_write())
        self.recovery = Recovery(self.store, self.beat_id, self.clock, self.entries, self, app, broker_name)
        self._loading = Loading(self.store, self.entries, self.clock, self.beat_id)
        self._claiming = Claiming(self.store, self.entries, self.clock, self.beat_id)

    @classmethod
    def _unfit(cls) -> str:
        """Why the mixin can't work with this base; '' where it can."""
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

    # -- hooks ------------------------------------------------------------------------------------------------

    def poll_schedule(self) -> datetime | None:
        """Called before each sweep and before claims: bring ``schedule`` up to date, where it is kept elsewhere.

        Returns when it was last known to be in force (aware UTC, by ``clock``), None before it was first read. An entry
        that is new at the next call counts from there, unless ``on_entries_changed`` knows more. A schedule that was
        exchanged is noticed if its length differs; else set ``_heap`` to None, as Celery's schedulers do. Errors are
        logged and end the tick.
        """
        return self.clock.now()

    def on_entries_changed(self) -> None:
        """Called when ``entries`` are those of a new ``schedule``, before new ones are loaded. Does nothing.

        Errors are logged and end the tick.
        """

    def on_sweep(self) -> None:
        """Called every ``once_beat_recovery_interval`` while Redis answers, before entries are loaded. Does nothing.

        It may raise StoreUnavailableError: the sweep continues, and the beat tries again soon.
        """

    def on_close(self) -> None:
        """Called when beat ends, never within a tick; perhaps twice. Does nothing."""

    def unload(self, fingerprints: Mapping[str, str]) -> None:
        """Tell the store at the next sweep that these entries, name → fingerprint, are in no schedule any more."""
        self._loading.unload(fingerprints)

    # -- changes of the schedule ------------------------------------------------------------------------------

    def add(self, **kwargs: Any) -> Any:
        """As the base's; beat's entries follow at the next tick."""
        self._changed = True
        return super().add(**kwargs)

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """As the base's; beat's entries follow at the next tick."""
        self._changed = True
        super().update_from_dict(dict_)

    def merge_inplace(self, b: dict[str, Any]) -> None:
        """As the base's; beat's entries follow at the next tick."""
        self._changed = True
        super().merge_inplace(b)

    # -- the tick ---------------------------------------------------------------------------------------------

    def tick(self, *_: Any, **__: Any) -> float:
        """Do what is due; returns the seconds until the next tick. Never raises for Redis, the broker or the base.

        Raises SystemExit once this scheduler is closed. Celery's handler of SIGTERM and SIGINT closes it and raises
        that itself. But if the signal comes while an object is finalized, Python only prints the exception.
        """
        if self._closed:
            raise SystemExit
        self._ticking = True
        try:
            self._refresh()
            delay = self._tick()
        except OnceError as exc:
            delay = self._store_away(exc)
        except BaseException as exc:  # the base's, a user's hook, or a bug
            if self._closed or from_signal(exc):
                raise
            delay = self._tick_failed(exc)
        finally:
            self._ticking = False
        return 0.0 if self._closed else delay

    def _tick_failed(self, error: BaseException) -> float:
        """Continue at the next tick, from what the store knows: a beat that ended would run nothing.

        The beat lives: it says that its ticks fail, which ``ping``, ``status``, ``doctor`` and the metrics show.
        """
        why = failure_words(error, self.store.settings.failure_text) or "an error"
        text = "a tick failed: %s. If that isn't the base scheduler's, please report it"
        self._failing.begin(text, shown(error), why=why, error=error)
        self._changed = True  # its entries may not all be in force
        self.entries.restart()
        with guard(lambda _: None, timed=False):  # the next sweep logs an outage of Redis
            self.recovery.sweep(self._report())
        self.recovery.hurry()
        return self._backoff.next()

    def _refresh(self) -> None:
        self._polled = steady()
        known_at = self.poll_schedule()
        schedule = self.schedule
        # A base that reloads its schedule replaces its heap.
        if self._changed or self._heap is not self._no_heap or self.entries.changed(schedule):
            self._changed, self._heap = False, self._no_heap
            self.unload(self.entries.refresh(schedule, self._known_at))
            if not self.entries.all_loaded:
                self.recovery.hurry()
            self.on_entries_changed()
        else:
            self.entries.retry_wrong(schedule)
        self._known_at = known_at

    def _tick(self) -> float:
        away = None
        sweeps = not self.recovery.due_in()
        if sweeps:
            away = self._sweep()
            self._refresh()
        else:
            for part in self.entries.parts:
                if not part.due_in():
                    self._recover([*part.find_due()])
        delay = self._claim_due()
        if away is not None:
            raise away
        if not self._uncertain:
            self._backoff.reset()
            if sweeps:
                # Other ticks ask nothing, or only some nodes of a cluster: they don't show that an outage is over.
                self._store_outage.end()
                if self._failing.lasts:
                    self._failing.end()
                    self.recovery.hurry()  # to report it
        if not self.entries.all_loaded:  # there wasn't time for all, or a claim asked for it
            self.recovery.hurry()
            return 0.0
        return delay

    def _sweep(self) -> StoreUnavailableError | None:
        """Send the heartbeat, load entries, and publish again what is overdue.

        Returns why some of it couldn't be done: one node of a cluster doesn't answer. What concerns the others is done.
        """
        overdue = self.recovery.sweep(self._report())
        # A beat that wins nothing writes nothing else that shows whether replicas are back.
        self._uncertain &= not self.recovery.certain
        if self.recovery.forgotten:
            self.entries.restart()
        self.entries.end_rests(steady())
        self._loading.reload_superseded(self.recovery.alive)  # before on_sweep, which may let them rest again
        away = self.recovery.found.away
        steps: list[Callable[[], object]] = [partial(self._poll, source) for source in self.entries.sources]
        steps += [self.on_sweep, self._loading.load, partial(self._recover, overdue)]
        steps += (part.work for part in self.entries.parts)
        for step in steps:
            try:
                step()
            except StoreUnavailableError as exc:
                away = exc
        return away

    def _poll(self, source: Source) -> None:
        if self.entries.poll(source):
            self.recovery.hurry()

    def _report(self) -> BeatReport:
        """What this beat reports of itself."""
        now, due = self.clock.now(), self.entries.next_due()
        if self.broker_outage.lasts and not self._is_due():
            self.broker_ready()  # nothing else would ask when it is back
        broker = self.broker_trouble if self.store.settings.failure_text == "message" else "fails: its log says why"
        lag = max((now - due).total_seconds() if due else 0.0, self._loading.behind, 0.0)
        return BeatReport(
            self.clock.offset,
            lag,
            len(self.entries),
            self.entries.untracked,
            __version__,
            unloaded=len(self.entries.unloaded()),
            failing=self._failing.why or "",
            failing_for=self._failing.seconds,
            left_out=self.entries.left_out(),
            limits={name: str(slots) for name, slots in self.store.settings.limits.items()},
            broker=broker if self.broker_outage.lasts else "",
            broker_for=self.broker_outage.seconds,
        )

    def _claim_due(self) -> float:
        """Claim and publish a chunk of what is due; returns the seconds until the next tick."""
        if self._is_due():
            if not self.broker_ready():
                return min(self.recovery.due_in(), 1.0) or 0.1
            self._claim_slices()
        next_due, now = self.entries.next_due(), self.clock.now()
        assert self.max_interval is not None  # the base has a default
        wait = float(self.max_interval)
        if next_due is not None:
            wait = min(wait, (next_due - now).total_seconds())
        return max(min(wait, self.recovery.due_in(), *(part.due_in() for part in self.entries.parts)), 0.0)

    def _is_due(self) -> bool:
        next_due = self.entries.next_due()
        return bool(self._owed) or (next_due is not None and next_due <= self._polled_at())

    def _polled_at(self) -> datetime:
        """Until when this tick claims: what has come due since the schedule was polled is for the next tick.

        The process may be frozen anywhere in a tick, and the schedule may change meanwhile.
        """
        return self.clock.at(self._polled)

    def _claim_slices(self) -> None:
        until = steady() + self._patience
        for _ in range(CHUNK // SLICE):
            with held_back():
                if self._owed:
                    self._publish_owed()
                else:
                    self._claim(self._polled_at())
            if self.broker_outage.lasts or steady() > until or not self._is_due():
                return

    def _claim(self, now: datetime) -> None:
        claims = self._claiming.claim(self.schedule, now)
        self._changed |= claims.replaced
        for entry in claims.lost:
            with self.entries.isolate(entry):
                self._advance_source(entry)
        for window, count in claims.missed:
            signals.window_missed.send(sender=self, window=window, count=count)
            signals.window_closed.send(sender=self, window=window, outcome="missed", count=count)
        self._publish(claims.won, claims.sent)
        for part in self.entries.parts:
            part.on_claimed(job.entry for job in claims.won)
        if claims.away is not None:
            raise claims.away

    def _recover(self, overdue: list[WindowKey]) -> None:
        """Take and publish what is overdue, as much as there is time for until the next sweep.

        Raises StoreUnavailableError, if not for all then once the others are published.
        """
        if not overdue or not self.broker_ready():
            return
        overdue = list(self.recovery.not_refused(overdue))
        began, away = steady(), None
        for position in range(0, len(overdue), SLICE):
            if steady() - began > self.store.settings.recovery_interval:
                break
            with held_back():
                sent = steady()
                jobs, silent = self.recovery.take(overdue[position : position + SLICE])
                self._publish(jobs, sent)
            away = silent or away
        if away is not None:
            raise away

    # -- Redis is away ----------------------------------------------------------------------------------------

    def _store_away(self, error: OnceError) -> float:
        self.recovery.hurry()
        self._uncertain = isinstance(error, UncertainWriteError)
        self._store_outage.begin("nothing is claimed until Redis can be used again: %s", error)
        if self._owed and self.broker_ready():  # they were closed at their claim: the store isn't needed
            with held_back():
                self._publish_owed()
        self.entries.doubt()
        return self._backoff.next()

    def close(self) -> None:
        """As the base's, and say that this beat ends. Celery calls it within the signal handler and once more.

        Within the handler it may have interrupted a round trip: connections aren't taken from under it. The second
        call finds it unwound.
        """
        self._closed = True
        if self._ticking:
            return
        self._leave()
        super().close()
        self.on_close()

    def _leave(self) -> None:
        if self._owed:
            text = "once: %d untracked windows weren't published: the broker took too long"
            logger.error(text, len(self._owed), extra=about("windows_owed", count=len(self._owed)))
            self._owed = []
        if not hasattr(self, "store"):
            return
        for part in self.entries.parts:
            part.on_close()
        if self._store_outage.lasts:
            return
        try:
            self.store.leave(self.beat_id)
            self.store.close()
        except OnceError as exc:
            logger.debug("once: this beat couldn't report its end to the store: %s", exc)

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
        """As the base's, without entries that it can't make: it would end at the first one."""
        super().update_from_dict(self._made(dict_))

    def merge_inplace(self, b: dict[str, Any]) -> None:
        """As the base's, without entries that it can't make. The base would make each of them once more."""
        self._changed = True
        made = self._made(b)
        schedule = self.schedule
        for name in schedule.keys() - made.keys():
            del schedule[name]
        for name, entry in made.items():
            if name in schedule:
                schedule[name].update(entry)
            else:
                schedule[name] = entry

    def _made(self, entries: dict[str, Any]) -> dict[str, Any]:
        made = {}
        # The base would ask for the time at each entry, which takes it longer than all the rest.
        now = self.app.now()
        for name, entry in entries.items():
            with guard(partial(log_left_out, name)):
                known = entry if isinstance(entry, ScheduleEntry) else {"last_run_at": now, **entry}
                when = known.schedule if isinstance(known, ScheduleEntry) else known.get("schedule")
                if not isinstance(when, (int, float, timedelta)) and not hasattr(when, "is_due"):
                    raise SettingError(f"schedule: found {shown(when)}, expected seconds, a timedelta or a crontab()")
                made[name] = self._maybe_entry(name, known)  # type: ignore[attr-defined]  # celery-types lacks it
        return made
