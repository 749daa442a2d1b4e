"""How times and names look on a terminal."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.cli.output import local, plain, print_json, print_table, seconds
from celery_once_beat.schedules import OneOff, RRule, describe
from celery_once_beat.windows import parse_instant


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (1.24, "1.2 s"),
        (-3, "-3.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (86399.9, "1 d 0 h"),
        (273600, "3 d 4 h"),
    ],
)
def test_a_duration(span: float | None, text: str) -> None:
    """In the two units that matter, rounded without a 60 in the smaller one."""
    assert seconds(span) == text


def test_local_time() -> None:
    """In the zone that is asked for; the date only where it isn't today's there; a fraction where there is one."""
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 11, 21, 23, 30, tzinfo=timezone.utc)
    assert local(parse_instant("2026-11-21T23:00:00.000000Z"), berlin, now) == "00:00:00"
    assert local(parse_instant("2026-11-21T22:59:59.500000Z"), berlin, now) == "2026-11-21 23:59:59.5"
    assert local(parse_instant("2026-11-21T23:00:00.000000Z"), berlin) == "2026-11-22 00:00:00"
    assert local(None, berlin) == "-"


def test_a_name_from_outside_stays_on_its_line() -> None:
    """What could move a cursor, clear a screen or break a table is written out."""
    assert plain("nightly-report äöü 日本") == "nightly-report äöü 日本"
    assert plain("a\x1b[2Jb\nc") == "'a\\x1b[2Jb\\nc'"
    assert plain(None) == "-"


def test_json_holds_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor what turns the direction of a text; other letters stay as they are, and a program reads what was there."""
    value = {"a": "äöü 日本 \x1b[2J \x9b2J \x7f \u202e"}
    print_json(value)
    shown = capsys.readouterr().out
    assert "äöü 日本" in shown
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == value


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as they must be, and no line ends in blanks."""
    print_table(["A", "LONGER", ""], [["one", "2", ""], ["t", "three", "x"]])
    assert capsys.readouterr().out == "A    LONGER\none  2\nt    three   x\n"


class Tides(BaseSchedule):
    """One that doesn't say how it is written."""


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (schedule(timedelta(seconds=30)), "every 30 s"),
        (schedule(timedelta(minutes=90)), "every 90 min"),
        (schedule(timedelta(hours=1)), "every 1 h"),
        (schedule(timedelta(days=7)), "every 7 d"),
        (schedule(timedelta(seconds=4.44)), "every 4.44 s"),
        (crontab(minute="*/5", hour="1,3"), "*/5 1,3 * * *"),
        (solar("sunset", 48.1, 11.6), "sunset at latitude 48.1, longitude: 11.6"),
        (OneOff(datetime(2026, 1, 1, tzinfo=timezone.utc)), "2026-01-01T00:00:00.000000Z"),
        (
            RRule("DAILY", "2026-01-01T00:00:00+00:00", byhour=[3], byminute=[0]),
            "RRule('DAILY', '2026-01-01T00:00:00+00:00', byhour=[3], byminute=[0])",
        ),
        (Tides(), f"{__name__}.Tides"),
    ],
)
def test_a_schedule_in_words(when: object, text: str) -> None:
    """As people write it."""
    assert describe(when) == text


def test_an_hour_that_comes_twice() -> None:
    """When the clocks go back its times carry their offset; no other's do."""
    berlin = ZoneInfo("Europe/Berlin")
    assert local(parse_instant("2026-10-24T23:59:59.000000Z"), berlin) == "2026-10-25 01:59:59"
    assert local(parse_instant("2026-10-25T00:30:00.000000Z"), berlin) == "2026-10-25 02:30:00+02:00"
    assert local(parse_instant("2026-10-25T01:30:00.000000Z"), berlin) == "2026-10-25 02:30:00+01:00"
    assert local(parse_instant("2026-10-25T02:00:00.000000Z"), berlin) == "2026-10-25 03:00:00"
    assert local(parse_instant("2026-10-25T01:30:00.000000Z"), timezone.utc) == "2026-10-25 01:30:00"
