"""The client: schedules are set, changed, paused, deleted, run and looked at."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, TypeAlias, TypeVar

from celery import Celery, Task
from celery.schedules import BaseSchedule
from celery.utils.functional import chunks
from typing_extensions import TypedDict, Unpack

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
from celery_once_beat.features.runtime.store import StoredDefinition
from celery_once_beat.logs import about, get_logger
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import PureSchedule, next_start, zone_name
from celery_once_beat.schedules import Change, Definition, OneOff, check_name, check_words, find_zone, naming
from celery_once_beat.settings import Settings
from celery_once_beat.status import EntryStatus, WindowStatus, make_report
from celery_once_beat.store import Store, Unknown, new_store, raised, store_instead
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import expect, shown

from .value import Schedule, Wanted, check_number, check_version

logger = get_logger(__name__)

When: TypeAlias = "BaseSchedule | float | timedelta | datetime"
#: Called with why a schedule can't be read.
Wrong: TypeAlias = "Callable[[OnceError], None] | None"
#: Definitions by name, as they may be.
Like: TypeAlias = "Mapping[str, Definition] | None"
#: Schedules that travel in one pipeline.
_PAGE = 500


_METADATA = "metadata."
T = TypeVar("T")


class Fields(TypedDict, total=False):
    """What a schedule has, as arguments."""

    task: str | Task[Any, Any]
    schedule: When
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    options: Mapping[str, Any] | None
    once: Mapping[str, Any] | None
    timezone: str | tzinfo | None
    paused: bool | None
    metadata: Mapping[str, Any] | None


#: The arguments of a schedule that ``set_many`` takes.
_ARGUMENTS = frozenset({"name", *Fields.__annotations__})


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
            given = {"redis_url": url, "redis_options": redis_options and dict(redis_options), "key_prefix": key_prefix}
            app.conf.update({f"once_beat_{name}": value for name, value in given.items() if value is not None})
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
        schedule: When,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        once: Mapping[str, Any] | None = None,
        timezone: str | tzinfo | None = None,
        paused: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str = "",
        note: str = "",
        if_version: int | None = None,
    ) -> Schedule:
        """Make a schedule, or change it. It counts from now: never an early run; what was due before stays owed.

        ``schedule`` is one of Celery's, seconds or a timedelta for an interval, or a datetime to run once.
        ``timezone`` is that of a crontab, and of an interval of whole days (default: the schedule's own, else the
        app's). ``args``, ``kwargs`` and ``options`` are those of ``apply_async``, ``once`` the settings of a beat
        entry. ``metadata`` is a dict of the caller's own, up to 4 KiB of JSON: it is in no message, and a change of it
        alone makes no version. ``paused`` and ``metadata`` None leave that as it is. ``by`` and ``note`` stand in the
        log of changes. With ``if_version`` it is set only if that is its version, 0: only if there is none; else
        VersionConflictError says what there is. If all is as it was, nothing changes, nor does the version.
        """
        more: dict[str, Any] = {"args": args, "kwargs": kwargs, "options": options, "once": once}
        wanted = self._wanted(name, task, schedule, timezone, paused=paused, metadata=metadata, **more)
        self._check([wanted])
        return self.put(wanted, check_words(by, note), if_version=if_version)

    def change(self, name: str, *, by: str = "", note: str = "", **fields: Unpack[Fields]) -> Schedule:
        """Change these fields of a schedule, as ``set`` does; the others stay, also its time zone.

        If somebody else changes it meanwhile, it is changed as it is then.
        """
        known = self.get(name)
        while known is not None:
            given: dict[str, Any] = {**known.as_arguments(), "paused": None, "metadata": None, **fields}
            if "timezone" not in fields and _names_zone(given["schedule"]):
                given["timezone"] = None
            elif fields.get("timezone") is not None and "schedule" not in fields:
                given["schedule"] = known.in_zone(given["timezone"])
            try:
                return self.set(**given, by=by, note=note, if_version=known.version)
            except VersionConflictError as conflict:
                known = conflict.current
        raise self._unknown(name)

    def set_many(self, schedules: Iterable[Mapping[str, Any]], *, by: str = "", note: str = "") -> Sequence[Schedule]:
        """Set many schedules, each given by the arguments of ``set``, in a round trip for 500 of them.

        All are checked before the first is written. An error of Redis concerns some of them: call it again.
        """
        words, wanted = check_words(by, note), []
        for each in schedules:
            fits = isinstance(each, Mapping) and {"name", "task", "schedule"} <= each.keys() <= _ARGUMENTS
            expect("set_many", each, fits, f"a dict of {', '.join(sorted(_ARGUMENTS))}", SettingError)
            wanted.append(self._wanted(**each))
        self._check(wanted)
        return self._put(wanted, words)

    def _wanted(
        self,
        name: str,
        task: str | Task[Any, Any],
        schedule: When,
        timezone: str | tzinfo | None = None,
        *,
        paused: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Wanted:
        """Return what is to be set; ``more`` are the other fields of a definition."""
        check_name(name)
        # What has none of its own is in the app's, as a beat would have it.
        own = None if _names_zone(schedule) else self._app.timezone
        try:
            zone = own if timezone is None else _one_zone(timezone, schedule, more.get("once"))
            definition = Definition.of(task.name if isinstance(task, Task) else task, schedule, zone, **more)
        except SettingError as exc:
            raise naming(name, exc) from exc
        return Wanted(name, definition, paused, metadata)

    def check(self, name: str, definition: Definition) -> None:
        """Raise SettingError where ``set`` would. Writes nothing."""
        self._check([Wanted(check_name(name), definition)])

    def _check(self, wanted: Iterable[Wanted]) -> None:
        """Raise SettingError for the first that can't be set. What many of them have in common is checked once."""
        own = self._app.conf.beat_schedule or {} if self._knows_app else {}
        seen = set[str]()
        for each in wanted:
            name, definition = each.name, each.definition
            if name in own:
                raise SettingError(f"schedule {name!r}: beat_schedule has an entry of that name, which counts")
            try:
                form = repr((definition.task, definition.options, definition.once))
                if form not in seen:
                    # Naive times in options are in the time zone of the beats' app.
                    zone = self._app.timezone if self._knows_app else None
                    definition.check(name, self._settings_for(definition), self._app.tasks.get(definition.task), zone)
                    seen.add(form)
                if isinstance(definition.schedule, PureSchedule):
                    with suppress(UndecidedError):  # it keeps looking
                        next_start(definition.schedule, datetime.now(timezone.utc))
                self._refuse_the_past(name, definition)
            except (ScheduleError, SettingError) as exc:
                raise naming(name, exc) from exc

    def put(
        self, wanted: Wanted, words: str = "{}", *, if_version: int | None = None, counts_from: datetime | None = None
    ) -> Schedule:
        """As ``set``, of a definition that ``check`` has seen; ``words`` are those of ``check_words``.

        ``counts_from`` (aware, not in the future) is given where another scheduler has run it so far: windows up to
        there don't count, later ones are owed. None: it counts from now.
        """
        check_version(wanted.name, if_version)
        return self._put([wanted], words, if_version, counts_from)[0]

    def _put(
        self, wanted: Sequence[Wanted], words: str, if_version: int | None = None, counts_from: datetime | None = None
    ) -> Sequence[Schedule]:
        """Set schedules; raises the first error once all are sent."""
        made: builtins.list[Schedule | OnceError] = []
        for page in chunks(iter(wanted), _PAGE):
            requests = [each.request(words, if_version, counts_from) for each in page]
            replies = definitions.set_many(self._store, requests)
            made += (self._made(each, reply, if_version) for each, reply in zip(page, replies, strict=True))
        return [*map(raised, made)]

    def _made(
        self, wanted: Wanted, reply: definitions.Changed | definitions.Conflict | OnceError, if_version: int | None
    ) -> Schedule | OnceError:
        if isinstance(reply, definitions.Conflict):
            return self._conflict(wanted.name, reply, if_version)
        if isinstance(reply, OnceError):
            return reply
        self._name_unknown_task(wanted.name, wanted.definition.task)
        return Schedule.stored(wanted.definition, wanted.name, reply, self._store.trip.ahead)

    def pause(self, name: str, *, by: str = "", note: str = "") -> Schedule | None:
        """Claim no further windows; open ones continue. As ``celery once pause``, also for a beat's own entries.

        Returns the schedule as it is from then on; None: it is a beat's own entry, or ``get`` can't read it.
        """
        return self._set_paused(name, check_words(by, note), paused=True)

    def resume(self, name: str, *, from_now: bool = False, by: str = "", note: str = "") -> Schedule | None:
        """Claim windows again; else as ``pause``. Those of the pause are caught up on as after an outage.

        With ``from_now`` they are cancelled instead. One that was made paused owes none of them.
        """
        account = self._store.account(check_name(name)) if from_now else None
        if account is not None and account.paused:
            Orders(self._store).miss(self._entry(name))
        return self._set_paused(name, check_words(by, note), paused=False, from_now=from_now)

    def _set_paused(self, name: str, words: str, *, paused: bool, from_now: bool = False) -> Schedule | None:
        reply = definitions.set_paused(self._store, check_name(name), words, paused=paused, from_now=from_now)
        if isinstance(reply, Unknown):
            raise self._unknown(name)
        with suppress(OnceError):
            return self._schedule(reply) if isinstance(reply, StoredDefinition) else None
        return None

    def delete(self, name: str, *, by: str = "", note: str = "", if_version: int | None = None) -> bool:
        """Delete a schedule; returns False where there was none. Open windows continue to their outcome."""
        check_version(check_name(name), if_version)
        (reply,) = definitions.delete_many(self._store, [name], check_words(by, note), if_version=if_version)
        if isinstance(reply, definitions.Conflict):
            raise self._conflict(name, reply, if_version)
        return isinstance(raised(reply), definitions.Changed)

    def delete_many(self, prefix: str, *, by: str = "", note: str = "") -> int:
        """Delete the schedules whose names begin with ``prefix``, in a round trip for 500 of them; returns how many."""
        expect("delete_many, prefix", prefix, isinstance(prefix, str) and prefix, "a text, not empty", SettingError)
        words, replies = check_words(by, note), []
        for names in chunks(iter(self.names(prefix)), _PAGE):
            replies += definitions.delete_many(self._store, names, words)
        return sum(isinstance(raised(reply), definitions.Changed) for reply in replies)

    # -- what there is ----------------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule | None:
        """Return a schedule; None where there is none."""
        return self._schedule(_undeleted(definitions.read_definitions(self._store, [check_name(name)])[0]))

    def get_many(self, names: Iterable[str]) -> dict[str, Schedule]:
        """Return those of a page of schedules that there are, by name, in a round trip for 1,000 of them."""
        return {each.name: each for each in self._read([*map(check_name, names)])}

    def list(
        self,
        prefix: str = "",
        after: str = "",
        wrong: Wrong = None,
        *,
        where: Mapping[str, Any] | None = None,
    ) -> Iterator[Schedule]:
        """Yield the schedules whose names begin with ``prefix`` and come after ``after``, by name.

        ``where``: only those whose metadata have these values, like ``{"metadata.tenant": "42"}``; all with the prefix
        are read for that. One that can't be read is given to ``wrong``, as the error that says why, and left out; None:
        logged.
        """
        for page in self._pages(prefix, after, wrong, where):
            yield from page

    def _pages(
        self, prefix: str, after: str, wrong: Callable[[OnceError], None] | None, where: Mapping[str, Any] | None
    ) -> Iterator[builtins.list[Schedule]]:
        fits = where is None or (isinstance(where, Mapping) and all(str(each).startswith(_METADATA) for each in where))
        expect("list, where", where, fits, f"a dict like {{'{_METADATA}tenant': '42'}}", SettingError)
        asked = [(name.removeprefix(_METADATA), value) for name, value in (where or {}).items()]
        for names in chunks((name for name in self.names(prefix) if name > after), _PAGE):
            found = self._read(names, wrong or _log_wrong)
            yield [
                one for one in found if all(name in (of := one.metadata) and of[name] == value for name, value in asked)
            ]

    def names(self, prefix: str = "") -> builtins.list[str]:
        """Return the names that begin with ``prefix``, in order."""
        found = [raised(names) for names in definitions.definition_names(self._store)]
        return sorted(name for each in found for name in each if name.startswith(prefix))

    def _read(self, names: Sequence[str], wrong: Wrong = None, like: Like = None) -> builtins.list[Schedule]:
        """Read those of these schedules that there are; one that is ``like`` the definition of its name is that.

        One that can't be read is given to ``wrong``; None: it is raised.
        """
        found: builtins.list[Schedule] = []
        for known in definitions.read_definitions(self._store, names):
            try:
                found += filter(None, [self._schedule(_undeleted(known), like)])
            except OnceError as exc:
                if wrong is None or isinstance(exc, StoreUnavailableError):
                    raise
                wrong(exc)
        return found

    def changes(self, name: str) -> Sequence[Change]:
        """Return who changed a schedule, when and why: the last 50, newest first; for 30 days after its deletion."""
        records = raised(definitions.read_changes(self._store, [check_name(name)])[0])
        known = definitions.read_definitions(self._store, [name])[0]
        text = known.text if isinstance(known, StoredDefinition) and not known.deleted else ""
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

        They come after ``after``; None: after now, by the server. Else as ``Schedule.next``.
        """
        if (found := self.get(name)) is None:
            raise self._unknown(name)
        return found.next(number, self._store.snapshot().now if after is None else self._instant(after))

    def run(self, name: str, start: datetime | None = None) -> OrderedWindow:
        """Run the window at ``start`` now, also one that ran before; None: the newest that has started.

        A beat publishes it within one look, by the definition as it is then, or once it has loaded that. Its outcome is
        counted apart.
        """
        at = Orders(self._store).start_to_run(self._entry(name), None if start is None else self._instant(start))
        return Orders(self._store).run(name, [at], waits=True)[0]

    def backfill(self, name: str, start: datetime, end: datetime, *, again: bool = False) -> Sequence[OrderedWindow]:
        """Run the windows from ``start`` to ``end``, both included; what is open or done is left out.

        With ``again`` what is done runs once more. Else as ``run``.
        """
        since, until = self._instant(start), self._instant(end)
        starts, _ = Orders(self._store).starts_between(self._entry(name), since, until, again=again)
        return Orders(self._store).run(name, starts, waits=True)

    def history(self, name: str, number: int = 20) -> Sequence[WindowStatus]:
        """Return the last windows, newest first; also of a beat's own entries, and of what was deleted of late."""
        (found,) = self._histories([name], number).values()
        return raised(found)

    def history_many(self, names: Iterable[str], number: int = 20) -> Mapping[str, Sequence[WindowStatus]]:
        """Return the histories of a page of names, by name, in as many round trips as one takes.

        One that can't be read is logged, and left out.
        """
        return _readable(self._histories(names, number))

    def _histories(self, names: Iterable[str], number: int) -> dict[str, Sequence[WindowStatus] | OnceError]:
        seen = Lookup(self._store).overview(map(check_name, names), check_number(number)).entries
        prefix = self._store.settings.key_prefix
        return {
            name: StoreDataError(each.trouble)
            if each.trouble
            else [WindowStatus.of(window, name, prefix) for window in each.windows[:number]]
            for name, each in seen.items()
        }

    def status(self, name: str) -> EntryStatus:
        """Return how a schedule stands: its last window and the next, what is open, and what to look at."""
        self._entry(name)
        return self.status_many([name])[name]

    def status_many(self, names: Iterable[str]) -> Mapping[str, EntryStatus]:
        """Return how a page of schedules stands, by name, in as many round trips as one takes.

        Those that there are none of are left out; one that can't be read is logged, and left out.
        """
        entries, asked = self._entries(), [*map(check_name, names)]
        found = _readable(self._beat_entries(asked, entries))
        entries.apply(entries.scheduled, Changes([*found.values()]))
        overview = Lookup(self._store).overview(each.name for each in entries)
        report = make_report(overview, LoadedSchedule(entries, "", claims_windows=True))
        return {each.entry: each for each in report.entries if each.entry in found}

    # -- parts ------------------------------------------------------------------------------------------------

    def _schedule(self, known: StoredDefinition | None, like: Like = None) -> Schedule | None:
        """Read a definition as the store has it; None: there is none. Raises StoreDataError or NewerVersionError."""
        if known is None:
            return None
        same = (like or {}).get(known.name)
        definition = same if same and same.text() == known.text else Definition.read(known.name, known.text)
        return Schedule.stored(definition, known.name, known, self._store.trip.ahead)

    def _settings_for(self, definition: Definition) -> Settings:
        """The app's; without it with the limits that beats say they have, or any where none lives."""
        settings, limit = self._store.settings, definition.once.get("limit")
        if self._knows_app or not isinstance(limit, str):
            return settings
        reported = [beat for beat in Lookup(self._store).beats()[2] if beat.version is not None]
        known = {name for beat in reported for name in beat.limits} if reported else {limit}
        return replace(settings, limits=dict.fromkeys(known, 1))

    def _instant(self, when: datetime) -> datetime:
        try:
            aware = when if when.utcoffset() is not None else when.replace(tzinfo=self._app.timezone)
            return aware.astimezone(timezone.utc)
        except (AttributeError, OverflowError):
            raise SettingError(f"found {shown(when)}, expected a datetime") from None

    def _entries(self) -> Entries:
        return Entries("", self._store.settings, self._app.tasks)

    def _entry(self, name: str) -> BeatEntry:
        """The entry as a beat has it."""
        found = self._beat_entries([check_name(name)], self._entries())
        if not found:
            raise self._unknown(name)
        return raised(found[name])

    def _beat_entries(self, names: Sequence[str], entries: Entries) -> dict[str, BeatEntry | OnceError]:
        """Return these entries as a beat has them; of one that can't be read, why."""
        made: dict[str, BeatEntry | OnceError] = {}
        for name, (each, changes) in definitions.read_with_changes(self._store, names).items():
            try:
                known = _undeleted(each)
                if known is not None:
                    made[name] = make_defined(entries, self._app, known, raised(changes))
            except StoreUnavailableError:
                raise
            except OnceError as exc:
                made[name] = exc
        return made

    def _refuse_the_past(self, name: str, definition: Definition) -> None:
        if isinstance(definition.schedule, OneOff) and definition.schedule.clocked_time <= self._store.snapshot().now:
            known = self.get(name)
            if known is None or known.text() != definition.text():
                at = format_instant(definition.schedule.clocked_time)
                raise SettingError(f"found {at}, which is past, expected a time that is to come")

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
        current = self._schedule(reply.current and replace(reply.current, name=name))
        there = "there is none" if current is None else f"it has version {current.version}"
        return VersionConflictError(f"schedule {name!r}: expected version {expected}, {there}", current)

    def _unknown(self, name: str) -> UnknownScheduleError:
        return UnknownScheduleError(f"there is no schedule {name!r}")


def _names_zone(when: object) -> bool:
    """Whether a schedule has a time zone of its own."""
    known = vars(when) if isinstance(when, BaseSchedule) else {}
    return any(known.get(name) is not None for name in ("tz", "zone", "_app"))


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


def _undeleted(known: StoredDefinition | OnceError | None) -> StoredDefinition | None:
    """Return a definition that is there, else None; raises its error."""
    found = raised(known)
    return None if found is None or found.deleted else found


def _readable(found: Mapping[str, T | OnceError]) -> dict[str, T]:
    """Return what can be read, by name; log why the others can't."""
    for each in found.values():
        if isinstance(each, OnceError):
            _log_wrong(each)
    return {name: each for name, each in found.items() if not isinstance(each, OnceError)}


def _log_wrong(error: OnceError) -> None:
    logger.error("once: %s", error, extra=about("schedule_unreadable"))
