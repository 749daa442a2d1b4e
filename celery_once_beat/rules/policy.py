"""What an entry may set, when its messages may run, and which of its late windows run. Pure: no clock, no I/O.

Times are seconds, instants aware UTC datetimes.
"""

from __future__ import annotations

import math
import numbers
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery.utils.time import maybe_iso8601

from celery_once_beat.errors import SettingError
from celery_once_beat.identity import digest
from celery_once_beat.options import ENTRY_CHECKS, FIELDS, ROWS, EntryOptions, Options, Row, check_among, wrong
from celery_once_beat.settings import Settings
from celery_once_beat.wording import did_you_mean

from .pure import PureSchedule
from .starts import computes_interval, cron_fields, is_polled, repeats
from .wall_clock import DAY, changes, naive_utc
from .zones import find_zone, plain_zone

#: Of a long backlog, missed windows are claimed in steps of this many, so that the store knows how far a beat got.
_MOST_MISSED_AT_ONCE = 10_000
#: A claim names this many of the newest windows that it passes over: they may run still. Older leases have ended.
_MOST_LISTED = 1000
#: Most claims of one entry that are planned at a time.
_MOST_PLANNED = 100
#: The most seconds: Celery adds them to the time, and there is no year 10000.
_LONGEST_DELAY = 200_000_000_000.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


_ROWS = {name: row for name, row in ROWS.items() if row.policy or row.entry}
_LOADED = [name for name, row in ROWS.items() if row.load is not None]
if TYPE_CHECKING:

    class _Policy(Options, EntryOptions):
        pass
else:
    _defaults = {name: None if row.policy == "worker" else FIELDS[name].default for name, row in _ROWS.items()}
    _fields = [(name, Any, field(default=default)) for name, default in _defaults.items()]
    _Policy = make_dataclass("_Policy", _fields, frozen=True, kw_only=True, slots=True)


class EntryPolicy(_Policy):
    """An entry's policy: what its ``once`` option says, else its task's attributes, else the settings.

    What workers read from the task is None where the entry doesn't say it.
    """

    __slots__ = ()

    @property
    def end_rules(self) -> dict[str, Any]:
        """What the store judges the entry's windows by, as the names of ``load``'s arguments."""
        return {name: getattr(self, name) for name in _LOADED}

    @classmethod
    def of(cls, entry: str, once: object, task: object, settings: Settings, *, cron: bool = False) -> EntryPolicy:
        """Validate the ``once`` option of ``entry``; raises SettingError naming entry and key.

        ``cron``: it has a crontab.
        """
        if once is None:
            once = {}
        if not isinstance(once, Mapping):
            raise SettingError(
                f"beat entry {entry!r}, option 'once': found {type(once).__name__}, expected a dict like "
                "{'catch_up': 'all'}"
            )
        for key in once:
            if key not in _CHECKS:
                hint = did_you_mean(str(key), _CHECKS, repr)
                raise SettingError(
                    f"beat entry {entry!r}, option 'once': unknown key {key!r:.80}{hint}, "
                    f"expected one of {', '.join(_CHECKS)}"
                )
        asked = {name: row for name, row in _ROWS.items() if name in once or row.policy == "beat"}
        values = {name: _value(entry, name, row, once, task, settings) for name, row in asked.items()}
        return _policy(**values if cron else {**values, "cron_starting_deadline": None})


#: Most entries share a few policies: equal ones are one object.
_policy = lru_cache(maxsize=1024, typed=True)(EntryPolicy)


def _value(entry: str, name: str, row: Row, once: Mapping[Any, Any], task: object, settings: Settings) -> Any:
    """Return an option of an entry: what its ``once`` says, else its task, else the app; raises SettingError."""
    where, value = f"once[{name!r}]", once.get(name)
    if name not in once:
        where, default = f"once_{name} of its task", getattr(settings, name, None)
        value = settings.of_task(name, task) if row.task else default
        if value is default:  # else it may be a property, whose value has changed since the start
            return value
    value = _CHECKS[name](f"beat entry {entry!r}, {where}", value)
    return value if row.among is None else check_among(row.among, f"beat entry {entry!r}, {where}", value, settings)


def check_anchor(name: str, value: Any) -> datetime | None:
    """Return an anchor as an aware datetime in UTC; raises SettingError, which begins with ``name``."""
    return None if value is None else check_instant(name, value)


def check_instant(name: str, value: Any) -> datetime:
    """Return a datetime, or its text, as an aware one in UTC; raises SettingError, which begins with ``name``."""
    try:
        # It is a text if options are kept as JSON, as in a database.
        instant = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
        return naive_utc(instant).replace(tzinfo=timezone.utc)
    except (AttributeError, TypeError, ValueError, OverflowError):  # OverflowError: beyond the calendar, in UTC
        raise wrong(name, value, "a datetime with a time zone, or its text in ISO 8601") from None


def check_zone(name: str, value: Any) -> tzinfo | None:
    """Return a time zone that is given by name or as itself; raises SettingError, which begins with ``name``."""
    return None if value is None else find_zone(value, name)


@dataclass(frozen=True, slots=True)
class Timing:
    """What an entry's options say of when its messages run. A countdown goes before an eta, as in Celery."""

    #: Seconds, at least 0; None: none.
    countdown: float | None = None
    #: Aware; None: none.
    eta: datetime | None = None
    #: Seconds, or an aware instant; None: never.
    expires: float | datetime | None = None

    @classmethod
    def of(cls, entry: str, options: object, task: object, zone: tzinfo | None) -> Timing:
        """Validate the options of ``entry``; raises SettingError, which names the entry and the option.

        ``task`` is the task that it sends, or None; ``zone`` is that of naive datetimes, the app's.
        """
        if not isinstance(options, Mapping):
            raise wrong(f"beat entry {entry!r}, options", options, "a dict")
        if _OF_TIMING.isdisjoint(options) and getattr(task, "expires", None) is None:
            return _AT_ONCE
        where = f"beat entry {entry!r}, options"
        headers = options.get("headers")
        if headers is not None and not isinstance(headers, Mapping):
            raise wrong(f"{where}['headers']", headers, "a dict")
        countdown = _seconds(f"{where}['countdown']", options.get("countdown") or None)
        eta = _instant(f"{where}['eta']", options.get("eta") or None, zone)
        if "expires" in options:
            name, expires = f"{where}['expires']", options["expires"]
        else:
            name, expires = f"beat entry {entry!r}, expires of its task", getattr(task, "expires", None)
        if isinstance(expires, (datetime, str)):
            return cls(countdown, eta, _instant(name, expires or None, zone))
        return cls(countdown, eta, _seconds(name, expires))

    def delay(self, now: datetime, since: datetime | None = None) -> float:
        """Seconds from ``now`` until a message that is published now may run.

        A countdown counts from ``since``, None: from now. Both are aware.
        """
        if self.countdown is None:
            return 0.0 if self.eta is None else _until(self.eta, now)
        return self.countdown if since is None else max(self.countdown - _until(now, since), 0.0)

    def expires_after(self, now: datetime) -> float | None:
        """Seconds from ``now`` (aware) after which a message that is published now expires; None: never."""
        expires = self.expires_at(now)
        return None if expires is None else _until(expires, now)

    def expires_at(self, now: datetime) -> datetime | None:
        """When a message that is published at ``now`` (aware UTC) expires; None: never."""
        return now + timedelta(seconds=self.expires) if isinstance(self.expires, float) else self.expires


#: The options that are read for it.
_OF_TIMING = frozenset({"headers", "countdown", "eta", "expires"})
#: Of most entries.
_AT_ONCE = Timing()


def _until(instant: datetime, now: datetime) -> float:
    return max((instant - now).total_seconds(), 0.0)


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    expected = "a number of seconds"
    if not isinstance(value, numbers.Real):
        raise wrong(name, value, expected)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not -_LONGEST_DELAY <= seconds <= _LONGEST_DELAY:  # also refuses NaN
        raise wrong(name, value, f"{expected}, at most {_LONGEST_DELAY:.0f}")
    return max(seconds, 0.0)


def _instant(name: str, value: Any, zone: tzinfo | None) -> datetime | None:
    if value is None:
        return None
    try:
        found: Any = maybe_iso8601(value) if isinstance(value, str) else value
        aware: datetime = found if found.utcoffset() is not None else found.replace(tzinfo=zone)
        _until(aware, _EPOCH)  # an exotic zone may refuse what is asked of it later
    except Exception as exc:  # whatever a user's time zone raises
        kind = "a datetime" if zone is not None else "a datetime with a time zone"
        raise wrong(name, value, f"{kind}, or its text in ISO 8601") from exc
    return aware


def spread_offset(entry: str, spread: float) -> timedelta:
    """Return a fixed delay for ``entry``, of 0 to ``spread`` seconds in whole ms, derived from its name."""
    if not spread:
        return timedelta(0)
    share = int.from_bytes(digest(entry), "big") / 2**64
    return timedelta(milliseconds=int(share * spread * 1000))


_CHECKS = {**ENTRY_CHECKS, "anchor": check_anchor, "tz": check_zone}


def fingerprint(task: str, when: object, anchor: datetime | None, spread: float = 0.0) -> str:
    """Return a short text that is the same for the same task and schedule in every process, however written."""
    rule = _rule(when)
    if spread:
        rule += (f"spread {spread}",)
    if getattr(when, "one_off", False):
        rule += ("one-off",)
    return _fingerprint(task, anchor and anchor.astimezone(timezone.utc), type(when).__name__, rule)


def _rule(when: object) -> tuple[frozenset[int] | str, ...]:
    """Return what says when a schedule of one type starts. Its parts are equal only if their texts are."""
    if isinstance(when, crontab):
        numbers = cron_fields(when)
        # A member of an enum, say, is equal to a number and writes itself otherwise.
        plain = {int}.issuperset(map(type, chain(*numbers)))
        part: Callable[[Iterable[int]], frozenset[int] | str] = frozenset if plain else _as_text
        return (*map(part, numbers), str(repeats(when)), _zone_text(when.tz))
    if isinstance(when, schedule):
        kind: Any = type(when)
        if computes_interval(kind):
            return ()  # it may be another one each time
        run_every: timedelta = when.run_every  # type: ignore[attr-defined]  # celery-types lacks it
        every = repr(run_every)
        # Whole days fall on the zone's midnights.
        return (every, _zone_text(when.tz)) if run_every and not run_every % DAY else (every,)
    if isinstance(when, PureSchedule):
        return (when.rule(),)
    if not isinstance(when, BaseSchedule) or " at 0x" in (text := repr(when)):
        return ()
    # The members of a set have another order in each process.
    return (re.sub(r"{[^{}]*}", lambda braces: " ".join(sorted(braces[0][1:-1].split(", "))), text),)


def _zone_text(zone: object) -> str:
    """Return a zone's name; of one that has only an address, its type: :func:`zone_rules` tells those apart."""
    text = str(zone)
    return type(zone).__name__ if " at 0x" in text else text


@lru_cache(maxsize=1024, typed=True)  # many entries have the same
def _fingerprint(task: str, anchor: datetime | None, kind: str, rule: tuple[frozenset[int] | str, ...]) -> str:
    parts = [task, anchor.isoformat() if anchor else "", kind, *map(_as_text, rule)]
    return sys.intern(digest("\x00".join(parts)).hex())


def zones_of(when: object) -> Iterable[tzinfo | None]:
    """Return the time zones whose rules decide when a schedule starts; None: the system's."""
    if isinstance(when, PureSchedule):
        return when.zones()
    kind: Any = type(when)
    if kind is schedule and when.run_every % DAY:  # type: ignore[attr-defined]  # celery-types lacks it
        return ()
    if kind is solar or is_polled(when) or not isinstance(when, BaseSchedule):
        return ()
    held: Iterable[Any] = () if kind in (crontab, schedule) else vars(when).values()  # of a user's own type
    zones: list[Any] = [each.tz for each in (when, *held) if isinstance(each, BaseSchedule)]
    return [*zones, *(each for each in held if isinstance(each, tzinfo))]


def zone_rules(when: object) -> str:
    """Return the end of a fingerprint: ``~`` and a digest of what this machine knows of the schedule's zones.

    '' where it needs none but UTC. Machines whose time zone data differ for one of them have another digest.
    """
    known = {_rules_of(zone) for zone in zones_of(when)} - {""}
    if isinstance(when, solar):
        sun: Any = when
        known.add(f"ephem {sun.ephem.__version__}")
    return _digest("~", *sorted(known)) if known else ""


def same_definition(one: str, other: str) -> bool:
    """Whether two fingerprints differ by :func:`zone_rules` at most."""
    return one.partition("~")[0] == other.partition("~")[0]


#: The zones of this process, by their id, with the digests of their rules. Not by the zone: dateutil's have no hash.
_rules: dict[int, tuple[tzinfo | None, str]] = {}
_MOST_ZONES = 1024


def _rules_of(zone: Any) -> str:
    if zone is timezone.utc or getattr(zone, "key", None) == "UTC":
        return ""  # the same everywhere
    plain = plain_zone(zone)
    known = _rules.get(id(plain))
    if known is None or known[0] is not plain:
        if len(_rules) >= _MOST_ZONES:
            _rules.clear()
        known = plain, _digest("", *map(repr, changes(plain)))
        _rules[id(plain)] = known
    return known[1]


def _digest(before: str, *parts: str) -> str:
    return sys.intern(before + digest("\x00".join(parts), 4).hex())


def _as_text(part: Iterable[int] | str) -> str:
    return part if isinstance(part, str) else repr(sorted(part))


@dataclass(frozen=True, slots=True)
class Step:
    """The next claim of an entry: ``start`` is published if ``run``, else missed like those before it."""

    start: datetime
    run: bool
    #: The newest of the windows that are missed, in order, and how many there are in all.
    missed: tuple[datetime, ...] = ()
    missed_count: int = 0


def next_steps(due: Sequence[datetime], now: datetime, policy: EntryPolicy, *, more: bool = False) -> list[Step]:
    """Plan the next claims, in order. ``due`` are the starts up to now that aren't claimed, in order.

    If none is more than ``tolerance`` late, all run. Else ``catch_up`` says which: the newest of all that
    are due (``latest``), the newest ``max_catch_up`` of the late ones and those on time (``all``), or only those on
    time (``none``). Older than ``grace`` or the starting deadline is missed.

    ``more``: further starts are due that aren't known yet. Returns [] if nothing is due or can be decided yet.
    """
    late = _count_before(due, now, policy.tolerance)
    limits = [each for each in (policy.grace, policy.cron_starting_deadline) if each is not None]
    old = _count_before(due, now, min(limits)) if limits else 0
    if policy.catch_up == "latest" and late:
        # Only the newest runs, so the last late one is kept until the newest is known.
        first = late - 1 if more else max(len(due) - 1, old)
        decided = not more
    else:
        most = policy.max_catch_up if policy.catch_up == "all" else 0
        first = max(late - most, old)
        decided = not more or late < len(due)  # all late ones are known
    missed = tuple(due[max(first - _MOST_LISTED, 0) : first])
    if first == len(due) or not decided:
        if not first or (more and first < _MOST_MISSED_AT_ONCE):
            return []
        return [Step(due[first - 1], False, missed, first)]
    later = due[first + 1 : first + _MOST_PLANNED]
    return [Step(due[first], True, missed, first), *(Step(start, True) for start in later)]


def _count_before(due: Sequence[datetime], now: datetime, seconds: float) -> int:
    """Return the index of the first start that isn't more than ``seconds`` old."""
    return bisect_left(due, now - timedelta(seconds=seconds))
