"""Schedules by recurrence rules: the starts are dateutil's, a look for them is bounded, reading is strict."""

from __future__ import annotations

import pickle
import re
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import FR, MO, rrule
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_once_beat import RRule
from celery_once_beat.rules import next_start, starts_after
from celery_once_beat.schedules import read_schedule, write_schedule
from celery_once_beat.schedules.rrule import _Starts

UTC = timezone.utc
NOW = datetime(2026, 11, 22, 17, 30, tzinfo=UTC)
DAY = timedelta(days=1)
FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
PERIOD = (366 * DAY, 31 * DAY, 7 * DAY, DAY, timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))


def numbers(*values: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True)


DAYS = {
    "bymonth": numbers(1, 2, 3, 6, 11, 12),
    "bymonthday": numbers(1, 2, 13, 22, 28, 29, 30, 31, -1, -2, -31),
    "byyearday": numbers(1, 60, 100, 326, 365, 366, -1, -366),
    "byeaster": numbers(-47, -2, 0, 1, 39),
    "byweekno": numbers(1, 2, 20, 47, 52, 53, -1, -53),
    "byweekday": numbers(*range(7)),
}
TIMES = {"byhour": numbers(0, 3, 9, 17, 23), "byminute": numbers(0, 7, 30, 59), "bysecond": numbers(0, 13, 59)}


@st.composite
def rules(draw: st.DrawFn) -> tuple[int, datetime, dict[str, Any]]:
    freq = draw(st.integers(0, 6))
    first = draw(st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1))).replace(microsecond=0)
    rule: dict[str, Any] = {"interval": draw(st.integers(1, 5) | st.integers(1, 40)), "wkst": draw(st.integers(0, 6))}
    # dateutil goes through all seconds of the days that don't belong to a rule.
    days = {"byweekday": DAYS["byweekday"]} if freq >= 5 else DAYS
    for name, values in {**days, **TIMES}.items():
        if draw(st.integers(0, 4)) == 0:
            rule[name] = draw(values)
    if draw(st.integers(0, 2)) == 0:
        some = numbers(1, 2, 3, 5, 30, -1, -2, -4) if freq < 3 else st.sampled_from([[1], [-1], [1, 2]])
        rule["bysetpos"] = draw(some)
    if freq == 2:
        rule.pop("byweekno", None)  # refused
    return freq, first, rule


def of_dateutil(after: datetime, until: datetime, **rule: Any) -> list[datetime]:
    """The first six by dateutil's rule, from its own dtstart on. Without a start it would look up to MAXYEAR."""
    with patch("datetime.MAXYEAR", until.year + 1):
        try:
            found = list(islice(rrule(**rule, until=until).xafter(after), 6))
        except ValueError:  # it has found that there is none
            return []
    return found


@settings(max_examples=150, deadline=None)
@given(rules(), st.integers(0, 300), st.integers(0, 86399))
@example((2, datetime(2026, 11, 18, 9), {"bysetpos": [1], "byweekday": [0, 4]}), 3, 0)
@example((2, datetime(2026, 11, 18, 9), {"interval": 3, "wkst": 6, "byweekday": [6, 0, 2]}), 9, 7)
@example((0, datetime(2026, 1, 22, 9), {"bymonth": [3, 11]}), 0, 0)
def test_the_starts_are_dateutils(drawn: tuple[int, datetime, dict[str, Any]], periods: int, seconds: int) -> None:
    """Each of them, in order, and no other: with any interval, week start and position, from any instant on."""
    freq, first, rule = drawn
    interval = rule.get("interval", 1)
    after = first + min(periods * interval * PERIOD[freq], 40 * 366 * DAY)
    after += timedelta(seconds=seconds if freq < 4 else 0)
    until = after + min(400 * interval * PERIOD[freq], 30 * 366 * DAY)
    ours = RRule(FREQS[freq], first.replace(tzinfo=UTC), **rule)
    mine = list(islice(starts_after(ours, after.replace(tzinfo=UTC), until.replace(tzinfo=UTC)), 6))
    expected = of_dateutil(after, until, freq=freq, dtstart=first, **rule)
    assert [start.replace(tzinfo=None) for start in mine] == expected


def test_a_rule_that_ends_has_no_more_starts() -> None:
    """By its count or its until, whichever comes first; count begins at dtstart, wherever one asks."""
    first = NOW - 10 * DAY
    for rule, last in (({"count": 12}, 11), ({"until": first + 5 * DAY}, 5), ({"count": 3, "until": NOW}, 2)):
        when = RRule("DAILY", first, **rule)
        assert list(starts_after(when, first - DAY, NOW + 99 * DAY))[-1] == first + last * DAY
        assert next_start(when, first + last * DAY) is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The months and years of which dateutil is asked for the days."""
    asked: list[datetime] = []
    days_from = _Starts._days_from
    monkeypatch.setattr(_Starts, "_days_from", lambda self, begin: asked.append(begin) or days_from(self, begin))
    return asked


HOSTILE = [
    *({"freq": freq, "bymonth": 2, "bymonthday": 30} for freq in FREQS),
    {"freq": "SECONDLY", "bysetpos": 2},
    {"freq": "SECONDLY", "interval": 86399, "byhour": 5, "byminute": 0, "bysecond": 0},
    {"freq": "SECONDLY", "interval": 7, "byweekday": 0, "byhour": 5, "byminute": 0, "bysecond": 1},
    {"freq": "WEEKLY", "byweekday": 0, "bysetpos": 300},
    {"freq": "YEARLY", "byweekday": 0, "bysetpos": 300},
]


@pytest.mark.parametrize("rule", HOSTILE, ids=str)
def test_a_rule_without_a_start_is_looked_through_once(rule: dict[str, Any], asked: list[datetime]) -> None:
    """Up to 41 years ahead: each month or year of them once, however old its dtstart is."""
    assert next_start(RRule(**rule, dtstart="1900-01-01T00:00:00+00:00"), NOW) is None
    assert len(asked) == len(set(asked)) <= 42 * 12
    assert min(asked, default=datetime.max) >= datetime(2026, 1, 1)  # none, if each day counts


@pytest.mark.parametrize("freq", FREQS)
def test_the_age_of_a_rule_costs_nothing(freq: str, asked: list[datetime]) -> None:
    """A look goes through the month or year that it is asked for, and perhaps the next one."""
    assert next_start(RRule(freq, "0002-01-01T00:00:00+00:00"), NOW) is not None
    assert len(asked) <= 2


FULL = {
    "type": "rrule", "freq": "MONTHLY", "dtstart": "2026-11-22T09:00:00+01:00", "interval": 2, "wkst": "SU",
    "until": "2030-01-01T00:00:00+01:00", "bysetpos": [-1], "bymonth": [1, 11], "byweekday": ["-1FR", "MO"],
    "byhour": [9], "byminute": [0, 30], "bysecond": [0],
}  # fmt: skip


def test_a_rule_is_equal_by_its_value() -> None:
    """However it was written; also as JSON, pickled, and as its own text."""
    zone = timezone(timedelta(hours=1))
    when = RRule(
        1, datetime(2026, 11, 22, 9, tzinfo=zone), interval=2, wkst=6, until=datetime(2029, 12, 31, 23, tzinfo=UTC),
        bysetpos=-1, bymonth=(11, 1, 1), byweekday=[MO, FR(-1)], byhour=9, byminute={30, 0}, bysecond=0, count=None,
    )  # fmt: skip
    assert write_schedule(when) == FULL
    for same in (read_schedule(FULL), pickle.loads(pickle.dumps(when)), eval(repr(when))):
        assert (same, hash(same), repr(same)) == (when, hash(when), repr(when))
    assert when != RRule("MONTHLY", datetime(2026, 11, 22, 9, tzinfo=zone))
    assert RRule("DAILY", NOW) != RRule("DAILY", NOW.astimezone(zone)), "its days are others"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"freq": "FORTNIGHTLY"}, "freq: found 'FORTNIGHTLY', expected one of YEARLY"),
        ({"dtstart": datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))}, "doesn't follow daylight saving"),
        ({"dtstart": "0001-01-01T00:00:00+14:00"}, "dtstart: found '0001-01-01T00:00:00+14:00', expected a later year"),
        ({"until": 7}, "until: found 7"),
        ({"until": "9999-12-31T23:00:00-10:00"}, "until: found '9999-12-31T23:00:00-10:00', expected an earlier one"),
        ({"interval": 0}, "interval: found 0, expected a whole number from 1 to 14600"),
        ({"count": 10**6}, "count: found 1000000, expected a whole number from 1 to 10000"),
        ({"count": 5, "bymonth": 2, "bymonthday": 30}, "count: found 5, but the rule has 0 starts within 41 years"),
        ({"bymonthday": 0}, "bymonthday: found 0, expected whole numbers from -31 to 31, but not 0"),
        ({"byhour": [24]}, "byhour: found [24], expected whole numbers from 0 to 23"),
        ({"byweekday": "2MO"}, "byweekday: found '2MO', expected weekdays, MO to SU"),
        ({"freq": "MONTHLY", "byweekday": "6MO"}, "expected weekdays, MO to SU or -5MO to 5SU"),
        ({"wkst": [0, 1]}, "wkst: found [0, 1], expected one weekday"),
        ({"freq": "WEEKLY", "byweekno": 1}, "byweekno: found WEEKLY as freq, expected YEARLY"),
        ({"byhour": [*range(24)], "byminute": [*range(60)], "bysecond": [0, 1]}, "expected at most 1440 times"),
        ({"byday": "MO"}, "found the field 'byday', expected freq, dtstart"),
    ],
)
def test_what_is_no_rule_is_one_line(wrong: dict[str, Any], words: str) -> None:
    """What was found and what is expected."""
    with pytest.raises(ValueError, match=re.escape(words)) as found:
        RRule(**{"freq": "DAILY", "dtstart": NOW, **wrong})
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300


def test_days_are_counted_from_the_first() -> None:
    """Every third day, asked for on a day that isn't one."""
    when = RRule("DAILY", "2026-01-01T06:00:00+00:00", interval=3)
    found = list(islice(starts_after(when, datetime(2026, 1, 2, tzinfo=UTC), NOW), 2))
    assert found == [datetime(2026, 1, day, 6, tzinfo=UTC) for day in (4, 7)]
