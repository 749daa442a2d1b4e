"""``between``, ``excluding`` and ``union``: against sets, as values, nested, hostile, and run by a stock beat."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import partial
from itertools import islice, pairwise
from pathlib import Path, PosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_once_beat.errors import ScheduleError, SettingError, UndecidedError
from celery_once_beat.rules import budget, latest_start, next_start, read_zone, spend
from celery_once_beat.schedules import (
    Period,
    RRule,
    at,
    between,
    cron,
    every,
    excluding,
    read_schedule,
    union,
    write_schedule,
)
from celery_once_beat.windows import starts_after

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
NOON = datetime(2026, 12, 23, 12, tzinfo=UTC)
NIGHTLY = cron("0 2 * * *", tz="Europe/Berlin")
#: Ways in which zones are odd: half an hour, a lost day, Ramadan, two hours at once.
ODD = ("Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "Antarctica/Troll", "UTC")


def starts(when: BaseSchedule, after: datetime = NOON, span: timedelta = 6 * DAY) -> list[str]:
    return [f"{start.astimezone(BERLIN):%d %H:%M}" for start in starts_after(when, after, after + span)]


# -- against sets

LINES = ("0 2 * * *", "30 2,3 * * *", "15 * * * *", "*/20 1-3 * * *", "0 0 * * mon", "0 12 L * *", "0 0 1 * fri")
SPAN = 4 * DAY
#: Clocks change around them: forward, back, by a whole day; one is before 1970.
DAYS = [datetime(*day) for day in ((2026, 3, 29), (2026, 10, 25), (2026, 4, 5), (2011, 12, 30), (1969, 12, 31))]


@st.composite
def leaves(draw: st.DrawFn, zone: str, near: datetime) -> BaseSchedule:
    kind = draw(st.sampled_from(["cron", "crontab", "every", "days", "at", "rrule"]))
    if kind == "cron":
        return cron(draw(st.sampled_from(LINES)), tz=zone)
    if kind == "crontab":
        return between(crontab(minute=draw(st.sampled_from([0, "*/30", 15])), hour=draw(st.integers(0, 5))), tz=zone)
    if kind == "every":
        return every(f"{draw(st.sampled_from([30, 45, 60, 420]))} min")
    if kind == "days":
        return every("1 d", anchor=near.replace(tzinfo=None) + draw(st.integers(0, 9)) * HOUR, tz=zone)
    if kind == "at":
        return at(near + draw(st.integers(-48, 48)) * HOUR)
    return RRule("HOURLY", near - 3 * DAY, interval=draw(st.integers(1, 7)))


@st.composite
def composed(draw: st.DrawFn, zone: str, near: datetime, levels: int = 3) -> tuple[BaseSchedule, set[datetime]]:
    """A schedule, and the set of its instants in the days around ``near``."""
    begin, end = near - SPAN, near + SPAN
    kind = draw(st.sampled_from(["leaf", "union", "between", "without", "days"])) if levels else "leaf"
    if kind == "leaf":
        leaf = draw(leaves(zone, near))
        return leaf, set(starts_after(leaf, begin - MICROSECOND, end))
    below = partial(composed, zone, near, levels - 1)
    when, instants = draw(below())
    if kind == "between":
        first, last = sorted(near + draw(st.integers(-90, 90)) * HOUR for _ in range(2))
        last += HOUR
        return between(when, start=first, end=last), {each for each in instants if first <= each < last}
    if kind == "days":
        day = (near + draw(st.integers(-3, 3)) * DAY).astimezone(ZoneInfo(zone)).date()
        shut = {each for each in instants if each.astimezone(ZoneInfo(zone)).date() == day}
        return excluding(when, day, tz=zone), instants - shut
    other, others = draw(below())
    return (union(when, other), instants | others) if kind == "union" else (excluding(when, other), instants - others)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(ODD), st.sampled_from(DAYS))
def test_composed_schedules_are_sets_of_instants(data: st.DataObject, zone: str, day: datetime) -> None:
    """union, excluding and between are the operations of sets; no start is skipped, and none comes twice."""
    near = day.replace(tzinfo=UTC)
    when, expected = data.draw(composed(zone, near))
    found = list(starts_after(when, near - SPAN - MICROSECOND, near + SPAN))
    assert found == sorted(expected)
    for one, two in islice(pairwise(found), 20):
        assert next_start(when, one + (two - one) / 2) == next_start(when, two - MICROSECOND) == two
    assert eval(repr(when)) == when
    read = read_schedule(write_schedule(when))
    assert list(starts_after(read, near - SPAN - MICROSECOND, near + SPAN)) == found
    assert eval(repr(read)) == read


# -- what each of them says


@pytest.mark.parametrize(
    ("when", "bounds", "expected"),
    [
        (NIGHTLY, {"start": "2026-12-25T02:00", "runs": 2}, ["25 02:00", "26 02:00"]),
        (NIGHTLY, {"start": "2026-12-20", "runs": 5}, ["24 02:00"]),
        (NIGHTLY, {"start": "2026-12-25", "runs": 9, "end": "2026-12-26"}, ["25 02:00", "26 02:00"]),
        (excluding(NIGHTLY, ["2026-12-26"]), {"start": "2026-12-25", "runs": 2}, ["25 02:00", "27 02:00"]),
        (at("2026-12-25", tz="Europe/Berlin"), {"start": "2026-12-24", "runs": 2, "tz": "UTC"}, ["25 00:00"]),
    ],
)
def test_between_ends_after_so_many_runs(when: Any, bounds: dict[str, Any], expected: list[str]) -> None:
    """They are counted from its start, without what is left out; whoever asks later gets the rest."""
    runs = between(when, **bounds)
    assert starts(runs) == expected
    assert eval(repr(runs)) == runs == read_schedule(write_schedule(runs))
    assert starts(read_schedule(write_schedule(runs))) == expected


def test_the_words_of_between_have_its_bounds() -> None:
    """Those that it has, in UTC."""
    both = between(NIGHTLY, start=NOON, end=NOON + 30 * DAY)
    assert both.words().endswith(", from 2026-12-23T12:00:00Z, until 2027-01-22T12:00:00Z")
    ended = between(NIGHTLY, end="2026-12-24")
    assert "from" not in ended.words()


LEFT_OUT: list[tuple[Any, list[str]]] = [
    ("2026-12-25", ["24", "26", "27", "28", "29"]),
    (["2026-12-25", date(2026, 12, 27)], ["24", "26", "28", "29"]),
    (("2026-12-25", "2026-12-27"), ["24", "28", "29"]),
    (("2026-12-25T02:00", "2026-12-27T02:00"), ["24", "27", "28", "29"]),
    ("2026-12-25T02:00", ["24", "26", "27", "28", "29"]),
    (datetime(2026, 12, 25, 1, tzinfo=UTC), ["24", "26", "27", "28", "29"]),
    (crontab(minute=0, hour=2, day_of_week="sat"), ["24", "25", "27", "28", "29"]),
    (Period("2020-12-25", "2020-12-26", name="Christmas", rule="FREQ=YEARLY"), ["24", "27", "28", "29"]),
    (Period("2026-12-23", rule="FREQ=DAILY;UNTIL=20261227"), ["28", "29"]),
    (Period("2020-12-25", rule="FREQ=YEARLY", without=("2026-12-25",)), ["24", "25", "26", "27", "28", "29"]),
    (Period("2026-12-01T01:30", "2026-12-01T02:30", rule="FREQ=WEEKLY;BYDAY=MO,FR"), ["24", "26", "27", "29"]),
    (Period("2026-12-25T09:00", "2026-12-25T11:00", tz="Asia/Tokyo"), ["24", "26", "27", "28", "29"]),
]


@pytest.mark.parametrize(("left_out", "days"), LEFT_OUT, ids=lambda value: str(value)[:60])
def test_excluding_leaves_out(left_out: Any, days: list[str]) -> None:
    """Dates, instants, ranges, named and repeated periods, schedules; also as a value, and as JSON."""
    when = excluding(NIGHTLY, left_out)
    assert [start[:2] for start in starts(when)] == days
    assert eval(repr(when)) == when == pickle.loads(pickle.dumps(when))
    assert starts(read_schedule(write_schedule(when))) == starts(when)


def reasons(when: Any, days: int = 4) -> list[str]:
    return [why for _, why in when.left_out(NOON, NOON + days * DAY)]


def test_what_is_left_out_has_a_reason() -> None:
    """The day and the name of a period, or the schedule; through others too, but not where one of them starts.

    The day is that of the schedule's zone, where its night is another day's evening elsewhere.
    """
    in_tokyo = excluding(cron("0 2 * * *", tz="Asia/Tokyo"), ["2026-12-25"], tz="Asia/Tokyo")
    assert reasons(in_tokyo) == ["25 December"]
    christmas = excluding(NIGHTLY, {"2026-12-25": "Christmas Day"})
    weekends = excluding(christmas, cron("* * * * sat,sun", tz="Europe/Berlin"))
    found = [f"{start:%d} {why}" for start, why in weekends.left_out(NOON, NOON + 4 * DAY)]
    assert found == ["25 25 December, Christmas Day", "26 cron('* * * * sat,sun', tz='Europe/Berlin')",
                     "27 cron('* * * * sat,sun', tz='Europe/Berlin')"]  # fmt: skip
    both = union(christmas, cron("0 3 25 * *", tz="Europe/Berlin"))
    assert reasons(both) == ["25 December, Christmas Day"]
    assert reasons(union(christmas, NIGHTLY)) == reasons(between(christmas, end="2026-12-24")) == []


def test_parts_follow_the_zone_of_the_whole() -> None:
    """A part that names no zone has that of ``tz``; else that of the app, also where that is set later."""
    tokyo = union(cron("0 9 * * *"), crontab(minute=30, hour=9), tz="Asia/Tokyo")
    assert starts(tokyo, span=DAY) == ["24 01:00", "24 01:30"]
    app = Celery("tests", set_as_current=False)
    when = excluding(union(NIGHTLY, crontab(minute=0, hour=9)), "2026-12-25")
    hash(when)
    when.app = app
    app.conf.timezone = "Asia/Tokyo"
    assert starts(when, span=2 * DAY) == ["24 01:00", "24 02:00"]  # 25 December has begun in Tokyo
    assert starts(read_schedule(write_schedule(when)), span=2 * DAY) == ["24 01:00", "24 02:00"]
    bounded = between("1 h", start="2026-12-25", end="2026-12-25T02:00")
    bounded.app = app
    assert starts(bounded, span=2 * DAY) == ["24 16:00", "24 17:00"]


class Own(BaseSchedule):
    pass


class Raising(tzinfo):
    """A time zone of a user's."""

    def utcoffset(self, _: object) -> None:
        raise RuntimeError("no offset")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: union("0 2 * * *"), r"every: found '0 2 \* \* \*', expected .*; a cron line goes into cron\(\)"),
        (lambda: union(Own()), "expected cron\\(\\), every\\(\\), at\\(\\), an RRule"),
        (lambda: union(NIGHTLY, None), "schedule: found None, expected cron"),
        (lambda: excluding(NIGHTLY, "/etc/passwd.ics"), "expected a file as pathlib.Path"),
        (lambda: between(NIGHTLY, runs=3), "runs: found 3, expected a whole number from 1 to 10,000, and start="),
        (lambda: between(NIGHTLY, start="soon"), "between, start: found 'soon', expected a time"),
        (lambda: between(NIGHTLY, start="2026-12-25", end="2026-12-24"), "between: found 2026-12-24 as end"),
        (lambda: between(NIGHTLY, start="0001-01-01T00:00", tz="Asia/Tokyo"), "between: found .*a time within the cal"),
        (lambda: at(datetime(2026, 1, 1, tzinfo=Raising())), "expected a time within the calendar"),
        (lambda: excluding(NIGHTLY, 5), "excluding: found 5, expected a date"),
        (lambda: excluding(NIGHTLY, ("2026-12-25", "2026-12-26T12:00")), "expected two dates, or two datetimes"),
        (lambda: Period("2026-12-25T09:00", "2026-12-25T09:00"), "found 2026-12-25 09:00:00 as end"),
        (lambda: Period("2026-12-25", rule="FREQ=SECONDLY"), "expected FREQ=YEARLY or MONTHLY"),
        (lambda: Period("2026-12-25", rule="FREQ=YEARLY;BYMOON=1"), "expected FREQ=YEARLY"),
        (lambda: Period("2026-12-25", rule="FREQ=YEARLY;COUNT=1,2"), r"count: found \[1, 2\], expected a whole number"),
        (lambda: Period("2026-12-25T00:00Z", rule="FREQ=YEARLY"), "expected a local time and tz="),
        (lambda: Period("2026-12-25", name="x" * 201), "up to 200 characters"),
        (lambda: Period("2026-12-25", without="soon"), "period, without: found 'soon', expected a tuple of starts"),
        (lambda: union(NOON.replace(tzinfo=None)), "schedule: found .*2026, 12, 23, 12"),
        (union, "union: found no schedule, expected one or more"),
    ],
)
def test_what_is_wrong_is_refused_when_it_is_made(make: Any, expected: str) -> None:
    """One line, which says what was found and what was expected."""
    with pytest.raises(SettingError, match=expected) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_part_keeps_the_zone_of_its_own() -> None:
    """Celery's interval of a day falls on the midnights of the zone that it was given."""
    days = schedule(DAY)
    days.tz = ZoneInfo("Asia/Tokyo")  # type: ignore[misc]
    assert union(days, tz="Europe/Berlin") == union(every("1 d", tz="Asia/Tokyo"), tz="Europe/Berlin")
    at_nine = crontab(minute=0, hour=9)
    at_nine.tz = ZoneInfo("Asia/Tokyo")  # type: ignore[misc]
    assert starts(union(at_nine, tz="Europe/Berlin"), span=DAY) == ["24 01:00"]
    sun = solar("sunrise", 52.5, 13.4)
    assert starts(eval(repr(union(sun)))) == starts(union(sun)) == starts(sun)


def test_schedules_that_differ_have_different_rules() -> None:
    """By its rule a beat knows whether another one has the same definition. The app's zone counts where it is used."""
    here, there, later = cron("0 9 * * *"), cron("0 9 * * *"), cron("0 10 * * *", tz=BERLIN)
    here.tz, there.tz = BERLIN, UTC  # type: ignore[misc]
    assert here.rule() == cron("0 9 * * *", tz=BERLIN).rule() not in (there.rule(), later.rule())


def test_what_it_is_written_as_does_not_change_when_it_is_read() -> None:
    """Copies and JSON are the same schedule, also where a part takes its zone from another one."""
    when = excluding(cron("0 9 * * *", tz="Asia/Tokyo"), [crontab(minute=0, hour=9, day_of_week=2), cron("0 9 1 * *")])
    assert copy.deepcopy(when) == copy.copy(when) == pickle.loads(pickle.dumps(when)) == when
    assert write_schedule(read_schedule(write_schedule(when))) == write_schedule(when)
    assert read_schedule(write_schedule(when)).rule() == when.rule()  # type: ignore[attr-defined]


# -- bounded


def test_what_leaves_out_everything_is_looked_at_for_a_bounded_time() -> None:
    """A look ends and says how far it got; the next one goes on there."""
    nothing = excluding("1 s", every("1 s"))
    with pytest.raises(UndecidedError, match=r"leaves out each start up to 2026-12-23 12:") as caught:
        next_start(nothing, NOON)
    assert caught.value.asked > NOON + timedelta(minutes=10)
    with pytest.raises(UndecidedError) as again:
        next_start(nothing, NOON, asked=caught.value.asked)
    assert again.value.asked > caught.value.asked
    nothing.nowfun = lambda: NOON  # type: ignore[misc]
    assert nothing.is_due(NOON - DAY)[0] is False
    assert list(starts_after(nothing, NOON, NOON + HOUR)) == []
    with pytest.raises(ScheduleError, match="steps to find"):
        latest_start(nothing, NOON)
    monthly = excluding("1 min", cron("* * 22-31 * *", tz="UTC"))
    assert latest_start(monthly, NOON) == datetime(2026, 12, 21, 23, 59, tzinfo=UTC)


def nested(levels: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "cron", "line": "0 2 * * *", "tz": "UTC"}
    for _ in range(levels):
        fields = {"type": "union", "of": [fields]}
    return fields


_DAILY = {"start": "2026-12-25", "rule": "FREQ=DAILY;COUNT=9999"}
TOO_MUCH: list[dict[str, Any]] = [
    nested(17),
    {"type": "excluding", "when": nested(0), "periods": [{**_DAILY, "rule": "FREQ=DAILY;COUNT=99999999"}]},
    {"type": "excluding", "when": nested(0), "periods": [_DAILY] * 11},
    {
        "type": "union",
        "of": [
            {"type": "rrule", "freq": "DAILY", "dtstart": "2026-12-25T00:00Z", "count": count}
            for count in range(9_989, 10_000)
        ],
    },
]


def test_sixteen_levels_are_read() -> None:
    """And start as the schedule below them does."""
    assert starts(read_schedule(nested(16))) == starts(cron("0 2 * * *", tz="UTC"))


@pytest.mark.parametrize("fields", TOO_MUCH, ids=lambda fields: str(fields)[:70])
def test_what_is_read_costs_little(fields: dict[str, Any]) -> None:
    """What is too much is a ValueError of one line, whatever was stored."""
    with pytest.raises(ValueError, match=r"found|expected") as caught:
        read_schedule(fields)
    assert "\n" not in str(caught.value)


# -- a stock beat

COMPOSED = [
    cron("30 2 * * *", tz="Europe/Berlin"),
    cron("*/20 1-3 * * *", tz="Australia/Lord_Howe"),
    every("1 d", anchor="2026-01-01T02:30", tz="Europe/Berlin"),
    at("2026-03-29T02:30", tz="Europe/Berlin"),
    RRule("HOURLY", "2026-01-01T00:15:00+00:00", interval=5),
    union(cron("0 2 * * *", tz="Europe/Berlin"), crontab(minute=30, hour="2,3"), "7 h", tz="Europe/Berlin"),
    excluding(cron("*/15 * * * *", tz="Europe/Berlin"), ["2026-03-29", cron("0 * * * *", tz="Europe/Berlin")]),
]


@pytest.mark.parametrize("when", COMPOSED, ids=repr)
@pytest.mark.parametrize("day", [datetime(2026, 3, 28), datetime(2026, 10, 24), datetime(2026, 4, 4)], ids=str)
def test_a_stock_beat_runs_the_same_instants(when: Any, day: datetime) -> None:
    """Its loop, over a change of the clock: asked when it said to be asked, each start is due once, at its instant."""
    begin = day.replace(tzinfo=UTC)
    now = last = begin
    when = pickle.loads(pickle.dumps(when))
    when.nowfun = lambda: now
    first = next_start(when, begin)
    assert when.remaining_estimate(begin) == (first and first - begin)
    ran = []
    while now < begin + 3 * DAY:
        due, wait = when.is_due(last)
        if due:
            ran.append(now)
            last = now
        else:
            assert wait > 0
        now += timedelta(seconds=wait)
    assert ran == list(starts_after(when, begin, begin + 3 * DAY - MICROSECOND))


# -- files


def event(uid: int, *lines: str) -> str:
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{uid}", *lines, "END:VEVENT"])


def calendar(*events: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//tests//EN", *events, "END:VCALENDAR", ""])


ICS = calendar(
    event(1, "SUMMARY:Christmas Day", "DTSTART;VALUE=DATE:20201225", "DTEND;VALUE=DATE:20201226", "RRULE:FREQ=YEARLY"),
    event(2, "SUMMARY:Move", "DTSTART;VALUE=DATE:20261227", "DTEND;VALUE=DATE:20261229"),
    event(3, "SUMMARY:Freeze", "DTSTART;TZID=Asia/Tokyo:20261201T090000", "DURATION:PT3H",
          "RRULE:FREQ=WEEKLY;BYDAY=TH;UNTIL=20270101T000000Z", "EXDATE;TZID=Asia/Tokyo:20261203T090000"),
    event(3, "SUMMARY:Freeze, moved", "RECURRENCE-ID;TZID=Asia/Tokyo:20261224T090000",
          "DTSTART;TZID=Asia/Tokyo:20261230T090000", "DTEND;TZID=Asia/Tokyo:20261230T120000"),
    event(4, "SUMMARY:Called off", "STATUS:CANCELLED", "DTSTART;VALUE=DATE:20261226"),
)  # fmt: skip


@pytest.fixture
def holidays(tmp_path: Path) -> Path:
    pytest.importorskip("icalendar")
    path = tmp_path / "holidays.ics"
    path.write_text(ICS)
    return path


def test_a_file_of_holidays_is_left_out(holidays: Path) -> None:
    """Days, days in a row, times in a zone, repeated, moved, called off. JSON has the events, not the path."""
    when = excluding(NIGHTLY, holidays)
    assert starts(when, span=9 * DAY) == ["24 02:00", "26 02:00", "29 02:00", "01 02:00"]
    assert reasons(when, 9) == [
        "25 December, Christmas Day", "27 December, Move", "28 December, Move", "30 December, Freeze, moved",
        "31 December, Freeze",
    ]  # fmt: skip
    assert starts(when, datetime(2026, 12, 9, 12, tzinfo=UTC), DAY) == []  # Thursday 9:00 in Tokyo is 1:00 in Berlin
    written = write_schedule(when)
    assert str(holidays) not in str(written)
    assert starts(read_schedule(written), span=9 * DAY) == starts(when, span=9 * DAY)
    assert eval(repr(when), globals(), {"PosixPath": PosixPath}) == when == pickle.loads(pickle.dumps(when))
    other = holidays.with_name("other.ics")
    other.write_text(ICS.replace("20261224", "20261223"))
    assert when.rule() != excluding(NIGHTLY, other).rule()


@pytest.mark.parametrize(
    ("events", "left"),
    [
        # What the rule says, and each RDATE, as long as the first.
        (
            [event(5, "DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20261225", "RRULE:FREQ=YEARLY",
                   "RDATE;VALUE=DATE:20261226,20261228")],
            ["25", "27", "29"],
        ),
        # No end, or one that is its start: an instant.
        (
            [event(1, "DTSTART:20261224T010000Z"), event(1, "DTSTART:20261225T010000Z", "DTEND:20261225T010000Z")],
            ["26", "27", "28", "29"],
        ),
        # What is left out of it is on its own wall clock.
        (
            [event(1, "DTSTART;TZID=Europe/Berlin:20261224T013000", "DURATION:PT1H", "RRULE:FREQ=DAILY",
                   "EXDATE:20261226T013000")],
            ["26"],
        ),
    ],
)  # fmt: skip
def test_events_of_other_forms(holidays: Path, events: list[str], left: list[str]) -> None:
    """One that repeats and has further dates, and those without length."""
    holidays.write_text(calendar(*events))
    assert starts(excluding(NIGHTLY, holidays)) == [f"{day} 02:00" for day in left]


def test_a_file_that_cannot_be_read_is_one_entrys_trouble(holidays: Path) -> None:
    """The schedule can be made; whoever asks it gets one line that names the file. It is tried again."""
    path = holidays.with_name("missing.ics")
    when = excluding(NIGHTLY, path)
    for ask in (partial(next_start, when, NOON), when.rule, partial(write_schedule, when)):
        with pytest.raises((ScheduleError, SettingError), match=r"missing.ics can't be read: FileNotFoundError"):
            ask()
    for text in ("BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nEND:VEVENT\r\nEND:VCALENDAR", "no calendar", "\0" * 99):
        path.write_text(text)
        with pytest.raises(ScheduleError, match=r"missing.ics can't be read"):
            next_start(when, NOON)
    # A time in a zone that nobody knows isn't taken for a local one, and reading a file takes seconds at the most.
    for events, expected in (
        ([event(1, "DTSTART;TZID=Foo/Bar:20261225T000000")], "found the time zone 'Foo/Bar', expected a known one"),
        ([event(1, "DTSTART;VALUE=DATE:20261225")] * 10_001, "found 10001 events, expected up to 10000"),
    ):
        path.write_text(calendar(*events))
        with pytest.raises(ScheduleError, match=expected):
            next_start(when, NOON)
    path.write_text(ICS)
    assert starts(when)[:2] == ["24 02:00", "26 02:00"]


# -- what a question may cost

NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
MIDNIGHT = "2020-01-01T00:00:00+00:00"
#: Calls of functions within which each of these ends.
MOST_CALLS = 1_000_000


def daily(number: int, hours: float = 24) -> list[Period]:
    starts = [datetime(2026, 1, 1) + timedelta(minutes=29 * n) for n in range(number)]
    return [Period(each, each + timedelta(hours=hours), str(n), rule="FREQ=DAILY") for n, each in enumerate(starts)]


def never(minute: int) -> RRule:
    return RRule("DAILY", MIDNIGHT, bymonth=2, bymonthday=30, byhour=1, byminute=minute)


def asked_twice() -> Any:
    when: Any = cron("* * * * *", tz="UTC")
    for hour in range(15):
        when = excluding(when, [Period("2026-11-26T12:00", f"2026-11-27T{hour:02}:00")])
    return when


COSTLY = {
    "each second of a day is gone through": lambda: RRule(
        "SECONDLY", MIDNIGHT, byhour=[0], byminute=[0], bysecond=[0], count=10_000
    ),
    "no day fits": lambda: union(*map(never, range(60))),
    "daily periods cover all": lambda: excluding(cron("* * * * *", tz="Europe/Berlin"), daily(50)),
    "a hundred daily events": lambda: excluding(cron("*/5 * * * *", tz="Europe/Berlin"), daily(100, hours=0.1)),
    "equal periods": lambda: excluding(cron("* * * * *", tz="UTC"), [Period("2026-01-01", rule="FREQ=DAILY")] * 5000),
    "each level asks twice": asked_twice,
    "many rules that count": lambda: read_schedule(
        {
            "type": "union",
            "of": [
                {"type": "rrule", "freq": "DAILY", "dtstart": MIDNIGHT, "count": 9_000 + n, "byminute": [n]}
                for n in range(50)
            ],
        }
    ),
}


@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY)
def test_a_question_ends_whatever_is_asked(make: Any) -> None:
    """With a start, with how far it got, or with a line that says what it costs."""
    calls = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > MOST_CALLS:
            raise TimeoutError("too many calls")

    sys.setprofile(count)
    try:
        start = next_start(make(), NOW)
    except UndecidedError as exc:
        start = exc.asked
    except (ScheduleError, ValueError) as exc:
        sys.setprofile(None)
        assert "steps to find, the most that one question may take" in str(exc)  # noqa: PT017
        start = None
    finally:
        sys.setprofile(None)
    assert start is None or start > NOW


def test_what_is_only_slow_to_write_down_has_its_starts() -> None:
    """Dozens of daily events, rules that count, and deep nests are answered."""
    assert next_start(COSTLY["a hundred daily events"](), NOW) == NOW + timedelta(minutes=10)
    each_second = COSTLY["each second of a day is gone through"]()
    assert next_start(each_second, NOW) == datetime(2026, 11, 27, tzinfo=NOW.tzinfo)
    assert next_start(asked_twice(), NOW) == datetime(2026, 11, 27, 14, tzinfo=NOW.tzinfo)


def test_a_budget_is_of_one_thread_and_of_one_question() -> None:
    """A question within another one spends the steps of that; another thread's are its own."""
    with pytest.raises(ScheduleError, match="more than 10,000 steps"), budget(10_000), budget(10**6):  # noqa: PT012
        spend(10_000)
        thread = threading.Thread(target=spend, args=(10**6,))
        thread.start()
        thread.join()
        spend(1)
    spend(10**9)  # nobody asks: nothing is counted


def test_a_question_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten microseconds of its thread's CPU time for each step that it may take."""
    monkeypatch.setattr("time.thread_time", lambda: now)
    now = 5.0
    with budget(100_000):
        now = 5.99
        spend(2_000)
        now = 6.01
        with pytest.raises(ScheduleError, match="more than 1 s of CPU time"):
            spend(2_000)


# -- time zones

OF_ONE_MACHINE = ["localtime", "Factory", "posixrules", "right/Europe/Berlin", "posix/Europe/Berlin", "LOCALTIME"]


@pytest.mark.parametrize("name", OF_ONE_MACHINE)
def test_a_zone_of_one_machine_is_refused_wherever_it_is_named(name: str) -> None:
    """Machines that differ in it would run everything twice."""
    refused = rf"found .*{name}.*, which isn't the same time zone on every machine"
    for read in (lambda: cron("@daily", tz=name), lambda: every("1 d", tz=name), lambda: Period("2026-01-01", tz=name)):
        with pytest.raises(SettingError, match=refused):
            read()
    with pytest.raises(ValueError, match=refused):
        read_zone(name)


def test_a_zone_of_one_machine_that_is_an_object_is_refused() -> None:
    """As the app's timezone gives it to a crontab."""
    with open("/usr/share/zoneinfo/Europe/Berlin", "rb") as file:  # noqa: PTH123
        zone = ZoneInfo.from_file(file, key="localtime")
    with pytest.raises(SettingError, match="isn't the same time zone on every machine"):
        cron("0 2 * * *", tz=zone)
    app = Celery("once", set_as_current=False)
    app.timezone = zone  # type: ignore[misc]
    when = cron("0 2 * * *")
    when.app = app
    with pytest.raises(ScheduleError, match="isn't the same time zone on every machine"):
        next_start(when, NOW)


@pytest.mark.parametrize(
    ("when", "start"),
    [
        # A datetime starts once: in the zone of what it is a part of where it names none.
        (union(NOON + HOUR), "2026-12-23T13:00+00:00"),
        (union(datetime(2026, 12, 23, 22), tz="Asia/Tokyo"), "2026-12-23T13:00+00:00"),
        (union(NOON), None),
        # What is left out for years is passed over at once, also second by second.
        (excluding("1 s", ("2000-01-01", "2099-12-31"), tz="UTC"), "2100-01-01T00:00+00:00"),
        (between("1 s", start="2100-01-01T00:00Z"), "2100-01-01T00:00+00:00"),
        (union(at("2000-01-01", tz="UTC"), between(NIGHTLY, end="2001-01-01")), None),
    ],
)
def test_the_next_start(when: Any, start: str | None) -> None:
    """Of an instant, after years without one, or none, which is no error."""
    assert next_start(when, NOON) == (start and datetime.fromisoformat(start))


def test_a_span_may_begin_with_its_month() -> None:
    """Of a repeated period the one that ends on the first day of a month is found from there."""
    first = Period("2020-01-01", rule="FREQ=MONTHLY")
    assert next_start(excluding(NIGHTLY, first), NOON + 8 * DAY) == datetime(2027, 1, 2, 1, tzinfo=UTC)
