"""Makes entries of what sources say, checked against this app's settings and tasks, and describes them to readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry
from celery.schedules import crontab

from celery_once_beat.errors import SettingError
from celery_once_beat.options import ROWS
from celery_once_beat.rules import EntryPolicy, Timing, fingerprint, spread_offset, zone_name, zone_rules
from celery_once_beat.schedules import Definition, LoadedDefinition, cron
from celery_once_beat.settings import Settings
from celery_once_beat.windows import CHILD, is_child
from celery_once_beat.wording import shown, why_no_task

from .entry import BeatEntry, placed
from .timetable import Timetable

if TYPE_CHECKING:
    from celery import Celery

_NEED_ENDS: dict[str, Any] = {option: row for option, row in ROWS.items() if row.needs_ends}
_MAX_NAME = 64 * 1024
#: Most texts that are kept of what readers are shown.
_MOST_SUMMARIES = 1024


class Alike(dict[object, EntryPolicy]):
    """The policies of entries that are made together, by task and options: what many say is read once.

    Not for longer: a task's attribute may be a property.
    """

    def policy(self, read: Callable[[], EntryPolicy], once: object, *more: object) -> EntryPolicy:
        """Return the policy that ``once`` and ``more`` make, as ``read`` reads it the first time."""
        said = {} if once is None else once
        if type(said) is not dict or not {*map(type, said.values())} <= _PLAIN:
            return read()
        key = (*more, *said.items(), *map(type, said.values()))
        return self.get(key) or self.setdefault(key, read())


_PLAIN = {str, int, float, bool, type(None), timedelta, datetime}


class Making:
    """Makes the entries of one app."""

    def __init__(self, beat: str, settings: Settings, tasks: Mapping[str, Any], *, eager: bool = False) -> None:
        #: The beat's name; '' in a process that only displays entries.
        self._beat = beat
        #: The app's.
        self.settings = settings
        self._tasks = tasks
        #: A beat under ``task_always_eager``: the body runs in it, and no worker closes its window.
        self._eager = eager
        #: What readers are shown of entries, by all that it says: many say the same.
        self._summaries: dict[tuple[object, ...], str] = {}
        #: What was read of the entries that are being made together; None: it is one alone.
        self._alike: Alike | None = None

    def make(self, name: str, source: Any, stored_fingerprint: str = "") -> BeatEntry:
        """Return a new entry; raises SettingError, or whatever a user's name, options or schedule raise.

        ``stored_fingerprint`` is that of an entry that was set at run time, as the store has it.
        """
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME:
            raise SettingError(f"expected a name of 1 to {_MAX_NAME} bytes")
        if is_child(name) and stored_fingerprint != CHILD:
            raise SettingError(f"expected a name that doesn't begin with {CHILD}:, as those of children do")
        why = why_no_task(source.task)
        if why:
            raise SettingError(why)
        name = str.__str__(name)  # a subclass, an enum say, may write itself otherwise
        task: Any = self._tasks.get(source.task)
        closes_windows = getattr(task, "once_closes_windows", False)
        options = source.options or {}
        timing = Timing.of(name, options, task, getattr(getattr(source, "app", None), "timezone", timezone.utc))
        is_cron = isinstance(source.schedule, (crontab, cron))
        once = options.get("once")

        def read() -> EntryPolicy:
            if closes_windows:
                task.check_scheduled()
            return EntryPolicy.of(name, once, task, self.settings, cron=is_cron)

        policy = read() if self._alike is None else self._alike.policy(read, once, id(task), is_cron)
        tracked = policy.tracked
        if tracked is None:
            tracked = closes_windows and not self._eager
        if not (tracked or self._eager) and (self._beat or task is not None or policy.tracked is False):
            _refuse_untracked(name, source, policy)
        when = placed(source, policy)
        known = stored_fingerprint or fingerprint(source.task, when, policy.anchor, policy.spread)
        one_off = bool(getattr(source.schedule, "one_off", False))
        timetable = Timetable(when, policy.anchor, spread_offset(name, policy.spread), one_off=one_off)
        full = known + zone_rules(when)
        return BeatEntry(name, source, policy, full, tracked, timing, timetable, stored=bool(stored_fingerprint))

    def make_stored(
        self, app: Celery[Any], name: str, definition: Definition, at: datetime, fingerprint: str
    ) -> BeatEntry:
        """Return the entry ``name`` of a definition that the store has, with its fingerprint there.

        ``at`` (aware) is shown as its last run. Raises SettingError.
        """
        definition.check_tasks(self.settings)
        source = ScheduleEntry(
            name=name,
            task=definition.task,
            last_run_at=at,  # else it would ask for the time
            schedule=definition.schedule,
            args=tuple(definition.args),
            kwargs=dict(definition.kwargs),
            options={**definition.options, **({"once": dict(definition.once)} if definition.once else {})},
            app=app,
        )
        return self.make(name, source, fingerprint)

    def make_loaded(self, name: str, definition: LoadedDefinition, known: str) -> BeatEntry:
        """Return the entry ``name`` as another process has loaded it; ``known`` is its fingerprint.

        It is for display: it has no arguments. Raises SettingError. The definition has to have a schedule.
        """
        once = {name: getattr(definition, name) for name in ("anchor", "tz", "spread", "tracked")}
        if definition.lease is not None:
            once["lease"] = definition.lease
        options: dict[str, Any] = {"once": once}
        if definition.countdown is not None:
            options["countdown"] = definition.countdown
        source = SimpleNamespace(task=definition.task, schedule=definition.schedule, options=options)
        made = replace(self.make(name, source), fingerprint=known)
        made.timetable.one_off = definition.one_off
        return made

    def adopt(self, entry: BeatEntry, source: Any) -> bool:
        """Use ``source`` from now on, since a base may make a new one at each access.

        Returns False if its definition is another.
        Options aren't compared: a value in them may be of the moment, or have no equality.
        """
        if entry.stored or source is entry.source:  # no base has one that is stored
            return True
        if source is None:
            return False
        new = self.make(entry.name, source)
        if new.timing.countdown == entry.timing.countdown:
            entry.timing = new.timing  # eta and expires are often of the moment
        if new.definition != entry.definition:
            return False
        entry.set_source(source)
        return True

    # -- what readers are shown -------------------------------------------------------------------------------

    def summary(self, entry: BeatEntry) -> str:
        """Return what readers are shown of ``entry``; '' for one that was set at run time: the store has it."""
        if entry.stored:
            return ""
        policy, countdown = entry.policy, entry.timing.countdown
        lease = self.lease_of(entry)
        configured = (entry.fingerprint, entry.tracked, lease, countdown)
        if configured not in self._summaries:
            if len(self._summaries) >= _MOST_SUMMARIES:
                self._summaries.clear()
            definition = LoadedDefinition(
                task=entry.source.task,
                schedule=entry.when,
                description=entry.description,
                tz=None if policy.tz is None else zone_name(policy.tz),
                lease=lease,
                tracked=entry.tracked,
                one_off=entry.one_off,
                anchor=policy.anchor,
                spread=policy.spread,
                countdown=countdown,
            )
            self._summaries[configured] = definition.text()
        return self._summaries[configured]

    def lease_of(self, entry: BeatEntry) -> float | None:
        """Return for how long an execution of ``entry`` owns its window without renewing, in seconds.

        None: this app doesn't know the task, which may have a lease of its own.
        """
        task = self._tasks.get(entry.source.task)
        default = None if task is None else self.settings.of_task("lease", task)
        lease: float | None = entry.policy.lease or default
        return lease


def _refuse_untracked(name: str, source: Any, policy: EntryPolicy) -> None:
    """Raise SettingError where an untracked entry sets what takes the ends of its windows, which nobody learns."""
    once = (source.options or {}).get("once") or {}
    for option, row in _NEED_ENDS.items():
        found = getattr(policy, option) if row.among else once.get(option)  # what the app sets for all is no mistake
        if row.needs_ends(found):
            where = f"once[{option!r}]" if option in once else f"once_{option} of its task"
            raise SettingError(
                f"beat entry {name!r}, {where}: found {shown(found)} on an untracked entry, expected one whose windows "
                f"workers close: make its task {source.task!r} an OnceTask, let this beat's app know it, and don't set "
                "once['tracked'] to False"
            )
