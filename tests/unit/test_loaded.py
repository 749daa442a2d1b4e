"""What a beat says of an entry that it has loaded: who reads it knows the same starts."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.beat.entries import Entries
from celery_once_beat.schedules import LoadedDefinition, OneOff, RRule, cron, describe, excluding
from celery_once_beat.settings import Settings

T0 = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def in_zone(when: BaseSchedule, zone: str) -> BaseSchedule:
    when.tz = ZoneInfo(zone)
    return when


@pytest.mark.parametrize(
    "when",
    [
        schedule(timedelta(seconds=90)),
        schedule(timedelta(seconds=90), nowfun=lambda: T0),
        in_zone(schedule(timedelta(days=2)), "Asia/Kathmandu"),
        in_zone(crontab(minute=30, hour="2,14", day_of_week="mon-fri"), "Europe/Berlin"),
        solar("sunset", 48.1, 11.6),
        OneOff(datetime(2027, 1, 1, tzinfo=timezone.utc)),
        RRule("MONTHLY", "2026-01-31T09:30:00+02:00", byweekday=["-1FR"]),
        RRule("SECONDLY", "2020-01-01T00:00:00+00:00", interval=7),
    ],
    ids=describe,
)
def test_a_reader_knows_the_same_starts(when: BaseSchedule) -> None:
    """Whatever the type: the starts, and the schedule in words, are those of the beat."""
    text = LoadedDefinition(task="proj.task", schedule=when, lease=30.0, spread=5.0).text()
    read = LoadedDefinition.read(text)
    assert read.schedule is not None
    assert describe(read.schedule) == describe(when)
    entries = Entries("", Settings(redis_url="redis://"), {})
    shown = entries.make_loaded("entry", read, "a-mark")
    said = LoadedDefinition(task="proj.task", schedule=when, lease=30.0, spread=5.0)
    assert shown.after(T0) == entries.make_loaded("entry", said, "a-mark").after(T0)
    assert shown.after(T0) is not None
    assert shown.fingerprint == "a-mark"


def test_a_schedule_that_is_too_long_to_be_read_is_words() -> None:
    """Who shows the entry knows it all the same; the store doesn't keep a text that nobody reads."""
    days = [date(2026, 1, 1) + timedelta(days=day) for day in range(4000)]
    when = excluding(cron("0 2 * * *", tz="Europe/Berlin"), days)
    text = LoadedDefinition(task="proj.task", schedule=when, description=describe(when), lease=30.0).text()
    read = LoadedDefinition.read(text)
    assert (read.schedule, read.description) == (None, describe(when))


class Tides(BaseSchedule):
    """One that can't be stored."""


def test_a_type_that_cant_be_stored_is_words() -> None:
    """The same in each process: no address is in them."""
    when = Tides()
    text = LoadedDefinition(task="proj.task", schedule=when, description=describe(when), lease=30.0).text()
    read = LoadedDefinition.read(text)
    assert (read.schedule, read.description) == (None, f"{__name__}.Tides")
    newer = LoadedDefinition.read('{"task": "proj.task", "schedule": {"type": "of a newer version"}}')
    assert (newer.schedule, newer.description) == (None, "a schedule that this process can't read")
