"""A schedule as the store has it, as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import islice
from typing import Any

from celery.schedules import BaseSchedule

from celery_once_beat.beat import Timetable
from celery_once_beat.errors import ScheduleError, SettingError, StoreDataError
from celery_once_beat.features.runtime.store import Changed, SetRequest, StoredDefinition
from celery_once_beat.rules import EntryPolicy, find_zone, spread_offset, zone_name
from celery_once_beat.schedules import Definition, read_schedule
from celery_once_beat.schedules.strict_json import read_object
from celery_once_beat.settings import Settings
from celery_once_beat.status import coming_starts
from celery_once_beat.wording import expect

#: Starts, or windows of a history, that one call is asked for.
_MOST_ASKED = 1_000_000
#: Bytes of a schedule's metadata.
_MOST_METADATA = 4096


@dataclass(frozen=True, kw_only=True)
class Schedule(Definition):
    """A definition as the store has it."""

    name: str
    #: It counts the changes of this name, from 1.
    version: int
    #: By the server, aware UTC.
    changed_at: datetime
    changed_by: str = ""
    note: str = ""
    paused: bool = False
    #: What the caller keeps with it, as JSON has it. It is in no message.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: How far the server's clock was ahead of this machine's when it was read.
    clock_ahead: timedelta = field(default=timedelta(0), compare=False, repr=False)

    @classmethod
    def stored(cls, definition: Definition, name: str, known: StoredDefinition | Changed, ahead: timedelta) -> Schedule:
        """Make it of what the store says; raises StoreDataError for metadata that can't be read."""
        try:
            metadata = read_object(known.metadata) if known.metadata else {}
        except ValueError as exc:
            raise StoreDataError(f"schedule {name!r}, metadata: {exc}; set them again") from exc
        made = object.__new__(cls)  # with the definition's text too, and in a quarter of the time
        vars(made).update(
            vars(definition),
            name=name,
            version=known.version,
            changed_at=known.at,
            changed_by=known.by,
            note=known.note,
            paused=known.paused,
            metadata=metadata,
            clock_ahead=ahead,
        )
        return made

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Schedules.set`` that make it: the same, but for ``paused`` where it isn't."""
        found = {each.name: getattr(self, each.name) for each in fields(Definition)}
        more = {"name": self.name, "timezone": self.zone, "metadata": self.metadata, "paused": self.paused or None}
        return {**found, **more}

    def as_wanted(self) -> Wanted:
        """Return what is to be set to have it as it is."""
        return Wanted(self.name, self, self.paused, self.metadata)

    @property
    def zone(self) -> str | None:
        """The name of its time zone; None: it needs none, or has several."""
        return self.as_json()["schedule"].get("tz")  # type: ignore[no-any-return]

    def in_zone(self, zone: Any) -> BaseSchedule:
        """Return its schedule in ``zone``, where it has another one; raises SettingError."""
        own, other = self.zone, zone_name(find_zone(zone))
        if own in (None, other):
            return self.schedule

        def moved(part: dict[str, Any]) -> dict[str, Any]:
            return {**part, "tz": other} if part.get("tz") == own else part

        return read_schedule(json.loads(json.dumps(self.as_json()["schedule"]), object_hook=moved))

    def next(self, number: int = 1, after: datetime | None = None) -> Sequence[datetime]:
        """Return the next starts after ``after`` (aware), in UTC, without Redis.

        None: after now, by the server's clock as it was when this was read; of a value that wasn't read, by this
        machine's. There are fewer where the schedule ends, leaves out all for long, or can't say.
        """
        since = datetime.now(timezone.utc) + self.clock_ahead if after is None else after.astimezone(timezone.utc)
        own = {name: value for name, value in self.once.items() if name in ("anchor", "spread")}
        policy = EntryPolicy.of(self.name, own, None, Settings())
        timetable = Timetable(self.schedule, policy.anchor, spread_offset(self.name, policy.spread), one_off=False)
        found: list[datetime] = []
        with suppress(ScheduleError):
            # What came before an error is kept.
            found.extend(islice(coming_starts(timetable, since), check_number(number)))
        return found


def check_number(value: Any) -> int:
    """Return how many starts, or windows, somebody asks for; raises SettingError."""
    fits = type(value) is int and 0 <= value <= _MOST_ASKED
    return expect("number", value, fits, f"a whole number from 0 to {_MOST_ASKED:,}", SettingError)  # type: ignore[no-any-return]


def check_version(name: str, version: Any) -> None:
    """Check which version of a schedule somebody expects; raises SettingError."""
    fits = version is None or (type(version) is int and version >= 0)
    expect(f"schedule {name!r}, if_version", version, fits, "the version of a schedule, 0 or None", SettingError)


@dataclass(frozen=True)
class Wanted:
    """A schedule that is to be set. Raises SettingError for what can't be."""

    name: str
    definition: Definition
    #: None: as it is.
    paused: bool | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check what isn't in the definition."""
        what, fits = f"schedule {self.name!r}", self.paused is None or isinstance(self.paused, bool)
        expect(f"{what}, paused", self.paused, fits, "True, False or None", SettingError)
        expected = f"a dict of JSON's own types, up to {_MOST_METADATA:,} bytes of JSON"
        fits = self._metadata_text != ""
        expect(f"{what}, metadata", self.metadata, fits, expected, SettingError)

    @cached_property
    def _metadata_text(self) -> str | None:
        """Their JSON; '' where it can't be, None where there are none."""
        if self.metadata is None:
            return None
        try:
            text = json.dumps(self.metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
            fits = len(text.encode()) <= _MOST_METADATA and read_object(text) == self.metadata
        except (TypeError, ValueError, RecursionError):
            return ""
        return text if fits else ""

    def request(self, words: str, if_version: int | None, counts_from: datetime | None) -> SetRequest:
        """Return how the store is asked to set it; ``words`` are those of ``check_words``."""
        text = self.definition.text()
        return SetRequest(self.name, text, words, if_version, self.paused, counts_from, self._metadata_text)

    def is_set(self, current: Schedule, before: Schedule | None) -> bool:
        """Whether ``current`` is this, set where ``before`` was."""
        paused = self.paused if self.paused is not None else before is not None and before.paused
        metadata = self.metadata if self.metadata is not None else before.metadata if before else {}
        known = current.text(), current.paused, current.metadata
        return known == (self.definition.text(), paused, metadata)

    def as_json(self) -> dict[str, Any]:
        """Return what stands in a file."""
        found = {**self.definition.as_json(), "paused": self.paused, "metadata": self.metadata}
        del found["v"]
        return {name: value for name, value in found.items() if value is not None}
