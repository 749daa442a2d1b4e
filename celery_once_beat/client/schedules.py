"""The client: schedules are set, changed, paused, deleted, run and looked at."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any

from celery import Celery, Task
from celery.schedules import BaseSchedule
from celery.utils.log import get_logger

from celery_once_beat.beat import BeatEntry, Changes, Entries, LoadedSchedule
from celery_once_beat.errors import (
    OnceError,
    ScheduleError,
    SettingError,
    StoreDataError,
    StoreUnavailableError,
    UndecidedError,
    UnknownScheduleError,
    VersionConflictError,
)
from celery_once_beat.features.orders.orders import OrderedWindow, Orders
from celery_once_beat.features.runtime import store as definitions
from celery_once_beat.features.runtime.beat import make_defined
from celery_once_beat.logs import about, guarded
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import PureSchedule, next_start, zone_name
from celery_once_beat.schedules import Change, Definition, OneOff, Schedule, check_name, check_words, find_zone
from celery_once_beat.status import EntryStatus, WindowStatus, coming_starts, make_report
from celery_once_beat.store import Store, Unknown, new_store, raised, store_instead
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import expect, shown

logger = guarded(get_logger(__name__))

#: Schedules that travel in one pipeline.
_PAGE = 500
#: Starts, or windows of a history, that one call is asked for.
_MOST_ASKED = 1_000_000


class Schedules:
    """The schedules of one app. Thread-safe.

    Give the app; in a process without it, ``url`` and ``key_prefix`` of the Redis that coordinates it.

    Beats put a change in force within one look (``once_beat_recovery_interval``). From its answer on, no window is
    claimed by the old definition. Instants are aware datetimes; a naive one is in the app's time zone, with ``url`` in
    UTC.

    Wrong input raises SettingError, before anything is written. A method that needs a schedule raises
    UnknownScheduleError where there is none of that name. StoreUnavailableError says that Redis doesn't answer: a
    change may have been made all the same. StoreDataError and NewerVersionError say that a schedule can't be read.
    """

    def __init__(
        self,
        app: Celery[Any] | None = None,
        *,
        url: str | None = None,
        key_prefix: str | None = None,
        redis_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(app, str):
            raise SettingError("Schedules: found a text as app; give a URL as url=")
        if (app is None) == (url is None):
            raise SettingError("Schedules: give app or url=, one of the two: where schedules are kept")
        #: Without an app nobody knows here which tasks and which static entries there are.
        self._knows_app = app is not None
        if app is None:
            app = Celery("once", set_as_current=False)
            app.conf.once_beat_redis_url = url
            if redis_options is not None:
                app.conf.once_beat_redis_options = dict(redis_options)
            if key_prefix is not None:
                app.conf.once_beat_key_prefix = key_prefix
        elif key_prefix is not None or redis_options is not None:
            raise SettingError("Schedules: key_prefix and redis_options go with url; an app has settings for them")
        self._app = app
        self._own_store = new_store(app)
        self._unknown_tasks: set[str] = set()

    @property
    def _store(self) -> Store:
        """Its own; in a test's block, also if it was made before that, the test's."""
        return store_instead(self._app) or self._own_store

    def close(self) -> None:
        """Give the connections back; the next call connects again."""
        self._store.close()

    # -- changes ----------------------------------------------------------------------------------------------

    def set(  # noqa: PLR0913  # all that a schedule has
        self,
        name: str,
        *,
        task: str | Task[Any, Any],
        schedule: BaseSchedule | float | timedelta | datetime,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        once: Mapping[str, Any] | None = None,
        timezone: str | tzinfo | None = None,
        paused: bool | None = None,
        by: str = "",
        note: str = "",
        if_version: int | None = None,
    ) -> Schedule:
        """Make a schedule, or change it. It counts from now: never an early run; what was due before stays owed.

        ``schedule`` is one of Celery's, seconds or a timedelta for an interval, or a datetime to run once.
        ``timezone`` is that of a crontab, and of an interval of whole days (default: the schedule's own, else the
        app's). ``args``, ``kwargs`` and ``options`` are those of ``apply_async``, ``once`` the settings of a beat
        entry. ``paused`` None leaves that as it is. ``by`` and ``note`` stand in the log of changes. With
        ``if_version`` it is set only if that is its version, 0: only if there is none; else VersionConflictError says
        what there is. If all is as it was, nothing changes, nor does the version.
        """
        check_name(name)
        words = check_words(by, note)
        zone = self._zone_of(schedule) if timezone is None else _one_zone(timezone, schedule, once)
        definition = Definition.of(
            task.name if isinstance(task, Task) else task,
            schedule,
            zone,
            args=args,
            kwargs=kwargs,
            options=options,
            once=once,
        )
        self.check(name, definition)
        return self.put(name, definition, words, if_version=if_version, paused=paused)

    def check(self, name: str, definition: Definition) -> None:
        """Raise SettingError where :meth:`set` would. Writes nothing."""
        check_name(name)
        if self._knows_app and name in (self._app.conf.beat_schedule or {}):
            raise SettingError(f"schedule {name!r}: beat_schedule has an entry of that name, which counts")
        # Naive times in options are in the time zone of the beats' app.
        zone = self._app.timezone if self._knows_app else None
        settings, limit = self._store.settings, definition.once.get("limit")
        if not self._knows_app and isinstance(limit, str):  # beats know which there are
            settings = replace(settings, limits={limit: 1})
        definition.check(name, settings, self._app.tasks.get(definition.task), zone)
        if isinstance(definition.schedule, PureSchedule):
            try:
                next_start(definition.schedule, datetime.now(timezone.utc))
            except UndecidedError:
                pass  # it keeps looking
            except ScheduleError as exc:
                raise SettingError(f"schedule {name!r}: {exc}") from exc
        self._refuse_the_past(name, definition)

    def put(
        self,
        name: str,
        definition: Definition,
        words: str = "{}",
        *,
        if_version: int | None = None,
        paused: bool | None = None,
        counts_from: datetime | None = None,
    ) -> Schedule:
        """As :meth:`set`, of a definition that :meth:`check` has seen; ``words`` are those of ``check_words``.

        ``counts_from`` (aware, not in the future) is given where another scheduler has run it so far: windows up to
        there don't count, later ones are owed. None: it counts from now.
        """
        _check_version(name, if_version)
        fits = paused is None or isinstance(paused, bool)
        expect(f"schedule {name!r}, paused", paused, fits, "True, False or None", SettingError)
        reply = definitions.set_definition(
            self._store, name, definition.text(), words, if_version=if_version, paused=paused, counts_from=counts_from
        )
        if isinstance(reply, definitions.Conflict):
            raise self._conflict(name, reply, if_version)
        self._name_unknown_task(name, definition.task)
        if reply.same and (known := self.get(name)) is not None:
            return known
        said = json.loads(words)
        kept = {"version": reply.version, "changed_at": reply.at, "paused": reply.paused, "note": said.get("note", "")}
        return Schedule(**_fields(definition), **kept, name=name, changed_by=said.get("by", ""))

    def pause(self, name: str, *, by: str = "", note: str = "") -> Schedule | None:
        """Claim no further windows; open ones continue. As ``celery once pause``, also for a beat's own entries.

        Returns the schedule as it is from then on; None: it is a beat's own entry, or ``get`` can't read it.
        """
        return self._set_paused(name, check_words(by, note), paused=True)

    def resume(self, name: str, *, by: str = "", note: str = "") -> Schedule | None:
        """Claim windows again; else as ``pause``. Those of the pause are caught up on as after an outage."""
        return self._set_paused(name, check_words(by, note), paused=False)

    def _set_paused(self, name: str, words: str, *, paused: bool) -> Schedule | None:
        reply = definitions.set_paused(self._store, check_name(name), words, paused=paused)
        if isinstance(reply, Unknown):
            raise self._unknown(name)
        try:
            return _schedule(reply) if isinstance(reply, definitions.StoredDefinition) else None
        except OnceError:
            return None

    def delete(self, name: str, *, by: str = "", note: str = "", if_version: int | None = None) -> bool:
        """Delete a schedule; returns False where there was none. Open windows continue to their outcome."""
        _check_version(check_name(name), if_version)
        reply = definitions.delete_definition(self._store, name, check_words(by, note), if_version=if_version)
        if isinstance(reply, definitions.Conflict):
            raise self._conflict(name, reply, if_version)
        return isinstance(reply, definitions.Changed)

    # -- what there is ----------------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule | None:
        """Return a schedule; None where there is none."""
        return _schedule(self._known(name))

    def list(
        self, prefix: str = "", after: str = "", wrong: Callable[[OnceError], None] | None = None
    ) -> Iterator[Schedule]:
        """Yield the schedules whose names begin with ``prefix`` and come after ``after``, by name.

        One that can't be read is given to ``wrong``, as the error that says why, and left out; None: logged.
        """
        for page in self._pages(prefix, after, wrong):
            yield from page

    def _pages(
        self, prefix: str, after: str, wrong: Callable[[OnceError], None] | None
    ) -> Iterator[builtins.list[Schedule]]:
        found = [raised(names) for names in definitions.definition_names(self._store)]
        names = sorted(name for each in found for name in each if name.startswith(prefix) and name > after)
        on_wrong = wrong or _log_wrong
        for position in range(0, len(names), _PAGE):
            page: builtins.list[Schedule] = []
            chunk = names[position : position + _PAGE]
            for known in definitions.read_definitions(self._store, chunk):
                try:
                    page += filter(None, [_schedule(_undeleted(known))])
                except StoreUnavailableError:
                    raise
                except OnceError as exc:
                    on_wrong(exc)
            yield page

    def changes(self, name: str) -> Sequence[Change]:
        """Return who changed a schedule, when and why: the last 50, newest first; for 30 days after its deletion."""
        records = raised(definitions.read_changes(self._store, [check_name(name)])[0])
        known = definitions.read_definitions(self._store, [name])[0]
        text = known.text if isinstance(known, definitions.StoredDefinition) and not known.deleted else ""
        found = []
        for each in records:
            definition = Definition.read(name, text) if text and each.what == "set" else None
            kept = {field: getattr(each, field) for field in ("version", "at", "what", "by", "note")}
            found.append(Change(**kept, definition=definition))
            text = each.replaced if each.what in ("set", "delete") else text
        return found

    # -- windows ----------------------------------------------------------------------------------------------

    def next(self, name: str, number: int = 1, after: datetime | None = None) -> Sequence[datetime]:
        """Return the next starts, in UTC, by the definition alone: whether beats live or it is paused.

        They come after ``after``; None: after now. There are fewer where the schedule ends, leaves out all for
        long, or can't say.
        """
        entry, now = self._entry(name), datetime.now(timezone.utc)
        since = now if after is None else self._instant(after)
        found = []
        with suppress(ScheduleError):
            for start in islice(coming_starts(entry, since), _check_number(number)):
                found.append(start)  # noqa: PERF402  # what came before an error is kept
        return found

    def run(self, name: str, start: datetime | None = None) -> OrderedWindow:
        """Run the window at ``start`` now, also one that ran before; None: the newest that has started.

        A beat publishes it within one look, by the definition as it is then. Its outcome is counted apart.
        """
        at = Orders(self._store).start_to_run(self._entry(name), None if start is None else self._instant(start))
        return Orders(self._store).run(name, [at])[0]

    def backfill(self, name: str, start: datetime, end: datetime, *, again: bool = False) -> Sequence[OrderedWindow]:
        """Run the windows from ``start`` to ``end``, both included; what is open or done is left out.

        With ``again`` what is done runs once more. Else as ``run``.
        """
        since, until = self._instant(start), self._instant(end)
        starts, _ = Orders(self._store).starts_between(self._entry(name), since, until, again=again)
        return Orders(self._store).run(name, starts)

    def history(self, name: str, number: int = 20) -> Sequence[WindowStatus]:
        """Return the last windows, newest first; also of a beat's own entries, and of what was deleted of late."""
        seen = Lookup(self._store).entry(check_name(name), _check_number(number))
        if seen.trouble:
            raise StoreDataError(seen.trouble)
        return [WindowStatus.of(window, name, self._store.settings.key_prefix) for window in seen.windows[:number]]

    def status(self, name: str) -> EntryStatus:
        """Return how a schedule stands: its last window and the next, what is open, and what to look at."""
        entries = self._entries()
        entries.apply(entries.scheduled, Changes([self._entry(name, entries)]))
        overview = Lookup(self._store).overview([name])
        report = make_report(overview, LoadedSchedule(entries, "", claims_windows=True))
        return builtins.next(entry for entry in report.entries if entry.entry == name)

    # -- parts ------------------------------------------------------------------------------------------------

    def _zone_of(self, when: object) -> tzinfo | None:
        """The time zone of what has none of its own: the app's, as a beat would have it."""
        placed = isinstance(when, BaseSchedule) and ("tz" in vars(when) or vars(when).get("_app") is not None)
        zone: tzinfo = self._app.timezone
        return None if placed else zone

    def _instant(self, when: datetime) -> datetime:
        try:
            aware = when if when.utcoffset() is not None else when.replace(tzinfo=self._app.timezone)
            return aware.astimezone(timezone.utc)
        except (AttributeError, OverflowError):
            raise SettingError(f"found {shown(when)}, expected a datetime") from None

    def _known(self, name: str) -> definitions.StoredDefinition | None:
        return _undeleted(definitions.read_definitions(self._store, [check_name(name)])[0])

    def _entries(self) -> Entries:
        return Entries("", self._store.settings, self._app.tasks, eager=bool(self._app.conf.task_always_eager))

    def _entry(self, name: str, entries: Entries | None = None) -> BeatEntry:
        """The entry as a beat has it."""
        known = self._known(name)
        if known is None:
            raise self._unknown(name)
        changes = raised(definitions.read_changes(self._store, [name])[0]) if known.version > 1 else []
        return make_defined(entries or self._entries(), self._app, known, changes)

    def _refuse_the_past(self, name: str, definition: Definition) -> None:
        if isinstance(definition.schedule, OneOff) and definition.schedule.clocked_time <= self._store.snapshot().now:
            known = self._known(name)
            if known is None or known.text != definition.text():
                at = format_instant(definition.schedule.clocked_time)
                raise SettingError(f"schedule {name!r}: found {at}, which is past, expected a time that is to come")

    def _name_unknown_task(self, name: str, task: str) -> None:
        if self._knows_app and task not in self._app.tasks and task not in self._unknown_tasks:
            self._unknown_tasks.add(task)
            logger.warning(
                "once: schedule %r: this process doesn't know the task %s; a worker has to",
                name,
                shown(task),
                extra=about("task_unknown", entry=name, task=task),
            )

    def _conflict(self, name: str, reply: definitions.Conflict, expected: int | None) -> VersionConflictError:
        current = _schedule(reply.current)
        there = "there is none" if current is None else f"it has version {current.version}"
        return VersionConflictError(f"schedule {name!r}: expected version {expected}, {there}", current)

    def _unknown(self, name: str) -> UnknownScheduleError:
        return UnknownScheduleError(f"there is no schedule {name!r}")


def _one_zone(given: object, when: object, once: object) -> tzinfo:
    """Return the time zone that is given; raises SettingError where another one is given beside it."""
    zone = find_zone(given)
    own = when.zone if isinstance(when, PureSchedule) else None
    for what, other in (("schedule", own), ("once['tz']", once.get("tz") if isinstance(once, Mapping) else None)):
        if other is not None and zone_name(find_zone(other)) != zone_name(zone):
            raise SettingError(
                f"timezone: found {zone_name(zone)!r}, and {shown(other)} in {what}; expected one time zone"
            )
    return zone


def _check_number(value: Any) -> int:
    fits = type(value) is int and 0 <= value <= _MOST_ASKED
    number: int = expect("number", value, fits, f"a whole number from 0 to {_MOST_ASKED:,}", SettingError)
    return number


def _check_version(name: str, version: Any) -> None:
    fits = version is None or (type(version) is int and version >= 0)
    expect(f"schedule {name!r}, if_version", version, fits, "the version of a schedule, 0 or None", SettingError)


def _fields(definition: Definition) -> dict[str, Any]:
    return {field.name: getattr(definition, field.name) for field in fields(Definition)}


def _schedule(known: definitions.StoredDefinition | None) -> Schedule | None:
    """Read a definition as the store has it; None: there is none. Raises StoreDataError or NewerVersionError."""
    if known is None:
        return None
    return Schedule(
        **_fields(Definition.read(known.name, known.text)),
        name=known.name,
        version=known.version,
        changed_at=known.at,
        changed_by=known.by,
        note=known.note,
        paused=known.paused,
    )


def _undeleted(known: definitions.StoredDefinition | OnceError | None) -> definitions.StoredDefinition | None:
    """Return a definition that is there, else None; raises its error."""
    found = raised(known)
    return None if found is None or found.deleted else found


def _log_wrong(error: OnceError) -> None:
    logger.error("once: %s", error, extra=about("schedule_unreadable"))
