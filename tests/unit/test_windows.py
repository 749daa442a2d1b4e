"""Windows: instants as text, message headers, keys, and the starts of everything but crontabs."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_once_beat import OnceTask, Window
from celery_once_beat.errors import HeaderError, NewerVersionError, ScheduleError
from celery_once_beat.rules.starts import count_starts, latest_start, starts_after
from celery_once_beat.schedules import every
from celery_once_beat.testing import executing, window
from celery_once_beat.windows import (
    HEADERS,
    INSTANT_WIDTH,
    alert_id,
    check_retry,
    decode_headers,
    encode_headers,
    find_headers,
    format_instant,
    next_start,
    parse_instant,
    task_id,
    task_of_child,
    with_window,
)

UTC = timezone.utc
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

INSTANTS = st.datetimes(timezones=st.just(UTC))


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def app_in(zone: str) -> Celery:
    app = Celery("tests", set_as_current=False)
    app.conf.timezone = zone
    return app


APP = app_in("Europe/Berlin")


# -- instants as text


@given(INSTANTS)
def test_an_instants_text_parses_back_to_it(instant: datetime) -> None:
    """The text has one fixed width and means the same instant, in UTC."""
    text = format_instant(instant)
    assert len(text) == INSTANT_WIDTH
    assert parse_instant(text) == instant
    assert parse_instant(text).tzinfo is UTC


def test_an_instants_text_is_in_utc() -> None:
    """An instant of another zone is converted; one without a zone is refused."""
    assert format_instant(datetime(2026, 6, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))) == ("2026-06-01T10:00:00.000000Z")
    assert format_instant(datetime(26, 1, 1, tzinfo=UTC)) == "0026-01-01T00:00:00.000000Z"
    with pytest.raises(ValueError, match="aware"):
        format_instant(datetime(2026, 6, 1))


BAD_INSTANTS = [
    "",
    "2026-11-21T05:36:00Z",
    "2026-11-21 05:36:00.000000Z",
    "2026-11-21T05:36:00.000000+00:00",
    "2026-11-21T05:36:00.000000Z\n",
    "2026-02-30T05:36:00.000000Z",
    "0000-11-21T05:36:00.000000Z",
    "٢٠٢٦-11-21T05:36:00.000000Z",
    "x" * 10_000,
    b"2026-11-21T05:36:00.000000Z",
    None,
]


@pytest.mark.parametrize("text", BAD_INSTANTS, ids=lambda text: repr(text)[:40])
def test_any_other_text_is_no_instant(text: Any) -> None:
    """Only the canonical form is taken; the error shows what was found, shortened, and what was expected."""
    with pytest.raises(ValueError, match=r"2026-11-21T05:36:00\.000000Z") as caught:
        parse_instant(text)
    assert repr(text)[:20] in str(caught.value)
    assert len(str(caught.value)) < 200


# -- windows and their headers

START = at("2026-11-21T05:36")
WINDOW = Window("nightly", START, START + DAY)
GOOD = {
    "once_entry": "nightly",
    "once_start": "2026-11-21T05:36:00.000000Z",
    "once_end": "2026-11-22T05:36:00.000000Z",
    "once_attempt": 1,
    "once_tracked": 1,
    "once_v": 1,
}

WINDOWS = st.builds(
    lambda entry, start, length, attempt, kind, **more: Window(
        entry, start, start + length if length else None, attempt, kind == "tracked", keyed=kind == "keyed", **more
    ),
    st.text(min_size=1),
    st.datetimes(max_value=datetime(9000, 1, 1), timezones=st.just(UTC)),
    st.none() | st.timedeltas(MICROSECOND, 1000 * DAY),
    st.integers(1, 10**9),
    st.sampled_from(["tracked", "untracked", "keyed"]),
    lease=st.none() | st.integers(500, 10**9).map(lambda ms: ms / 1000),
    limit=st.none() | st.sampled_from(["reports", "a.b-c_9"]),
)


@given(WINDOWS)
def test_headers_carry_a_window(window: Window) -> None:
    """What is encoded decodes to the same window, from flat headers of plain strings and ints."""
    headers = encode_headers(window)
    assert decode_headers(headers) == window
    assert set(headers) <= HEADERS
    assert {type(value) for value in headers.values()} <= {str, int}
    assert ("once_end" in headers) == (window.end is not None)
    assert ("once_tracked" in headers) == window.tracked
    assert ("once_keyed" in headers) == window.keyed
    assert ("once_lease" in headers) == (window.lease is not None)
    assert headers.get("once_limit") == window.limit


def test_headers_look_like_this() -> None:
    """The names and forms on the wire stay as other languages' workers read them."""
    assert encode_headers(WINDOW) == GOOD
    assert decode_headers({**GOOD, "id": "…", "retries": 0}) == WINDOW
    assert encode_headers(WINDOW, "17") == {**GOOD, "once_id": "17"}


def test_headers_of_another_message_are_no_windows() -> None:
    """They hold for the task id that they name; some name none."""
    headers = {**GOOD, "once_id": "17"}
    assert decode_headers(headers) == decode_headers(headers, "17") == decode_headers(GOOD, "18") == WINDOW
    assert decode_headers(headers, "18") is None
    assert decode_headers({**headers, "once_attempt": "no number"}, "18") is None
    put_back = {**headers, "id": "17", "parent_id": "17", "retries": 0}
    assert decode_headers(put_back, "17") == WINDOW, "what a worker puts back has its own id as its parent's"
    child = Window("child", START, None, tracked=False, keyed=True)
    given = with_window({**headers, "trace": 1}, child, "18")
    assert given == {"trace": 1, **encode_headers(child, "18")}
    assert decode_headers(given, "18") == child


@pytest.mark.parametrize("headers", [{}, {"id": "x"}, {"once_attempt": "x", "once_tracked": None, "once_end": 3}])
def test_a_message_of_no_window(headers: dict[str, object]) -> None:
    """Without entry, start and version a message wasn't sent for a window."""
    assert decode_headers(headers) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(("once_start", text, "an instant") for text in BAD_INSTANTS),
        *(("once_end", text, "an instant") for text in BAD_INSTANTS),
        ("once_end", GOOD["once_start"], "after once_start, 2026-11-21"),
        ("once_entry", "", "1 to 65536 bytes"),
        ("once_entry", "é" * (32 * 1024 + 1), "1 to 65536 bytes"),
        ("once_entry", "\ud800", "1 to 65536 bytes"),
        *(("once_attempt", value, "from 1 to 1000000000") for value in (0, -1, 10**9 + 1, True, 1.0, "1", None)),
        *(("once_tracked", value, "1 or no such header") for value in (0, 2, True, "1", None, 1.0)),
        *(("once_keyed", value, "1 or no such header") for value in (0, 2, True, "1", None, 1.0)),
        ("once_keyed", 1, "expected one of the two"),
        *(("once_lease", value, "from 500 to ten years") for value in (0, True, "30", None, 499, 10**12, 10**400)),
        *(("once_limit", value, "the name of a limit") for value in ("", "a b", "{a}", 3, None, "x" * 65)),
        *(("once_v", value, "a whole number from 1") for value in (0, -1, True, "1", None, 1.0, [2])),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_header_is_named(name: str, value: object, expected: str) -> None:
    """The error names the header, what was found, shortened, and what was expected."""
    with pytest.raises(HeaderError, match=f"^message header {name}: found .*{expected}") as caught:
        decode_headers({**GOOD, name: value})
    assert len(str(caught.value)) < 260


@pytest.mark.parametrize("name", ["once_entry", "once_start", "once_attempt", "once_v"])
def test_a_missing_header_is_named(name: str) -> None:
    """Some of a window's headers without the others are an error, not half a window."""
    with pytest.raises(HeaderError, match=f"header {name}: found none"):
        decode_headers({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("version", [2, 10**6, 10**5000], ids=["2", "million", "endless"])
def test_a_newer_version_is_not_guessed_at(version: int) -> None:
    """Whatever else a newer message holds, it is an error of its own, so that it can be put back."""
    with pytest.raises(NewerVersionError, match="once_v"):
        decode_headers({"once_v": version, "once_entry": 5})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | INSTANTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_headers_are_found_flat_or_nested() -> None:
    """The first mapping that names an entry counts, else one that lost it; only its ``once_…`` headers are taken."""
    assert find_headers({"id": 1, **GOOD, "once_new": 2}) == {**GOOD, "once_new": 2}
    assert find_headers({"id": 1, "headers": {**GOOD, "id": 1}}) == GOOD
    assert find_headers(None, {}, {"headers": None}, {"headers": GOOD}, {"once_entry": "second"}) == GOOD
    assert find_headers({"once_start": "x"}, {"once_entry": "e", "headers": GOOD}) == {"once_entry": "e"}
    for left in ({"once_start": "x"}, {"once_v": 1}):
        assert find_headers({"id": 1, "once_attempt": 1}, {"headers": left}) == left
    assert find_headers() == find_headers(None) == find_headers({"headers": {"headers": GOOD}}) == {}


@given(st.lists(ANYTHING | st.dictionaries(st.sampled_from(["headers", "once_entry", 3, None]), ANYTHING)))
def test_finding_headers_raises_nothing(mappings: list[object]) -> None:
    """Whatever a message or request holds, there is a dict of headers."""
    assert all(name.startswith("once_") for name in find_headers(*mappings))


# -- intervals

GRIDS = [
    schedule(1),
    schedule(4.44),
    schedule(1 / 3),
    schedule(0.000001),
    schedule(timedelta(minutes=90)),
    schedule(DAY, app=APP),
    schedule(2 * DAY, app=APP),
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(GRIDS),
    st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.none() | st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 999),
)
def test_a_grid_is_the_same_from_any_instant(
    grid: schedule, after: datetime, anchor: datetime | None, part: int
) -> None:
    """From every instant between two starts the next one is the second, and starts only grow."""
    one, two, three = islice(starts_after(grid, after, after + 100 * DAY, anchor=anchor), 3)
    assert after < one < two < three
    assert next_start(grid, one + (two - one) * part // 1000, anchor=anchor) == two
    assert next_start(grid, two - MICROSECOND, anchor=anchor) == two
    if grid.run_every % DAY:
        assert two - one == three - two == grid.run_every
        assert not (one - (anchor or at("1970-01-01"))) % grid.run_every


def test_weeks_start_on_monday() -> None:
    """At local midnight, also over changes of the clocks."""
    weekly = list(islice(starts_after(schedule(7 * DAY, app=APP), at("2026-01-01"), at("2028-01-01")), 60))
    assert {start.astimezone(ZoneInfo("Europe/Berlin")).strftime("%a %H:%M") for start in weekly} == {"Mon 00:00"}
    local = [start.astimezone(ZoneInfo("Europe/Berlin")).date() for start in weekly]
    assert all((day.toordinal() - datetime(1970, 1, 5).toordinal()) % 7 == 0 for day in local)


@pytest.mark.parametrize(
    ("zone", "after", "starts"),
    [
        ("Europe/Berlin", "2026-03-28", ["2026-03-28T23:00", "2026-03-29T22:00", "2026-03-30T22:00"]),
        ("Europe/Berlin", "2026-10-24", ["2026-10-24T22:00", "2026-10-25T23:00", "2026-10-26T23:00"]),
        # no midnight: 01:00
        ("America/Havana", "2026-03-07T12:00", ["2026-03-08T05:00", "2026-03-09T04:00"]),
        ("Pacific/Apia", "2011-12-29T12:00", ["2011-12-30T10:00", "2011-12-31T10:00"]),  # no 30 December
    ],
)
def test_days_start_at_local_midnight(zone: str, after: str, starts: list[str]) -> None:
    """A day of 23 or 25 hours is one. A midnight that doesn't exist is the first instant after the gap."""
    found = list(starts_after(schedule(DAY, app=app_in(zone)), at(after), at(starts[-1])))
    assert found == [at(start) for start in starts]


def test_an_anchor_moves_the_grid() -> None:
    """The anchor is one of the starts; whole days keep its local time of day and count from its date."""
    anchor = at("2026-03-27T02:30", "Europe/Berlin")
    hours = schedule(timedelta(hours=5))
    assert next_start(hours, anchor - MICROSECOND, anchor=anchor) == anchor
    assert next_start(hours, anchor - 6 * HOUR, anchor=anchor) == anchor - 5 * HOUR
    two_days = schedule(2 * DAY, app=APP)
    assert list(starts_after(two_days, anchor - 3 * DAY, anchor + 5 * DAY, anchor=anchor)) == [
        at("2026-03-25T01:30"),
        at("2026-03-27T01:30"),
        at("2026-03-29T01:00"),  # 02:30 is skipped
        at("2026-03-31T00:30"),
    ]


@pytest.mark.parametrize(("run_every", "words"), [(0, "more than 0"), (-1, "more than 0"), (None, "NoneType")])
def test_an_interval_has_to_be_longer_than_0(run_every: Any, words: str) -> None:
    """Anything else is an error; it isn't an endless loop."""
    with pytest.raises(ScheduleError, match=words):
        next_start(schedule(run_every, app=APP), START)
    with pytest.raises(ValueError, match="aware"):
        next_start(schedule(1), START.replace(tzinfo=None))


def test_the_calendar_ends() -> None:
    """Beyond the last datetime there is no start, and no error."""
    end = datetime.max.replace(tzinfo=UTC)
    for grid in (schedule(3600), schedule(DAY, app=APP), schedule(10**6 * DAY, app=APP)):
        assert next_start(grid, end - SECOND) is None
    assert next_start(schedule(10**6 * DAY, app=APP), START + 1000 * 366 * DAY) is not None


# -- the sun

EVENTS = sorted(solar._all_events)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("lat", "lon"), [(48.1, 11.6), (-33.9, 151.2), (0, 180), (21.3, -157.9)])
def test_the_sun_is_celerys(event: str, lat: float, lon: float) -> None:
    """Where the event happens daily, each is the one that Celery's own type gives, to a second."""
    sun = solar(event, lat, lon, app=APP)
    if event == "dusk_astronomical" and sun._horizons[event] == "18":
        pytest.skip("this Celery has a wrong horizon for it, at which it doesn't happen daily")
    starts = list(starts_after(sun, at("2026-01-01"), at("2027-01-01")))
    assert len(starts) in (364, 365, 366)
    for before, start in pairwise(starts):
        assert timedelta(hours=23, minutes=50) < start - before < timedelta(hours=24, minutes=10)
    for start in starts[::14]:
        sun.nowfun = lambda now=start - 12 * HOUR: now
        assert abs(start - sun.now() - sun.remaining_estimate(sun.now())) <= SECOND


def test_the_sun_comes_back_after_a_polar_night() -> None:
    """While it doesn't rise nothing is due."""
    start = next_start(solar("sunrise", 78.2, 15.6, app=APP), at("2026-12-01"))
    assert start is not None
    assert at("2027-02-10") < start < at("2027-02-20")


# -- types with a rule of their own


class Clocked(BaseSchedule):
    """As django-celery-beat's."""

    clocked_time = START


def test_a_one_off_starts_once() -> None:
    """Before its time a one-off has one start, from then on none."""
    assert list(starts_after(Clocked(app=APP), START - 400 * DAY, START + 4000 * DAY)) == [START]
    assert next_start(Clocked(app=APP), START + DAY) is None


class Noon(crontab):
    """Overrides ``remaining_estimate`` alone, and counts in its zone."""

    def remaining_estimate(self, last_run_at: datetime, *_: Any) -> timedelta:
        now = self.now()
        noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
        return (noon if noon > now else noon + DAY).astimezone(UTC) - now


def test_a_type_that_overrides_remaining_estimate_is_asked() -> None:
    """It sees the pinned time in its own zone."""
    found = list(starts_after(Noon(app=APP), at("2026-03-27T12:00"), at("2026-03-30")))
    assert found == [at("2026-03-28T11:00"), at("2026-03-29T10:00")]


class Wrong(BaseSchedule):
    """Answers what it is told to."""

    def __init__(self, remaining: Any = NotImplementedError) -> None:
        super().__init__(app=APP)
        self.remaining = remaining

    def remaining_estimate(self, last_run_at: datetime) -> Any:
        if self.remaining is NotImplementedError or isinstance(self.remaining, Exception):
            raise self.remaining
        return self.remaining


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Wrong(remaining=timedelta(0)), "doesn't advance"),
        (Wrong(remaining=RuntimeError("no database")), "no database"),
        (Wrong(remaining=OverflowError("too much")), "too much"),
        (Wrong(remaining=None), "can't say"),
        (object(), "can't say"),
    ],
)
def test_a_schedule_that_has_no_answer_is_an_error(wrong: Any, message: str) -> None:
    """One that raises or doesn't advance ends in ScheduleError, which says why."""
    with pytest.raises(ScheduleError, match=message) as caught:
        next_start(wrong, START)
    assert len(str(caught.value)) < 300
    raised = getattr(wrong, "remaining", None)
    assert not isinstance(raised, Exception) or raised in (caught.value.__cause__, caught.value.__cause__.__cause__)


def test_one_that_waits_for_ever_has_no_start() -> None:
    """So many seconds that the calendar ends are None."""
    assert next_start(Wrong(remaining=timedelta.max), START) is None


@pytest.mark.parametrize("answer", [DAY, RuntimeError()])
def test_the_schedules_own_clock_is_put_back(answer: Any) -> None:
    """However it ends, the schedule has its `nowfun` again, and none if it had none of its own."""
    for held in ({"nowfun": None}, {"nowfun": datetime.now}, {}):
        wrong = Wrong(remaining=answer)
        del wrong.nowfun
        vars(wrong).update(held)
        with contextlib.suppress(ScheduleError):
            next_start(wrong, START)
        assert {name: value for name, value in vars(wrong).items() if name == "nowfun"} == held


def test_a_retry_number_that_the_store_can_keep() -> None:
    """None is the first try; what is no whole number up to a milliard is refused with what was found."""
    assert [check_retry(number) for number in (None, 0, 10**9)] == [0, 0, 10**9]
    for wrong in (-1, 10**9 + 1, True, 1.0, "1"):
        with pytest.raises(HeaderError, match=r"^message header retries: found .*, expected .* from 0 to 10{9}$"):
            check_retry(wrong)


# -- counting

RECENT = st.datetimes(datetime(2020, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))
SPANS = st.timedeltas(-DAY, 3 * DAY)
SCHEDULES = st.one_of(
    st.timedeltas(timedelta(minutes=3, microseconds=7), 2 * DAY).map(lambda every: schedule(every, app=APP)),
    st.sampled_from([schedule(4440.0, app=APP), schedule(DAY, app=APP), schedule(2 * DAY, app=APP)]),
    st.sampled_from([every(4440), every(4440, anchor="2026-05-01T00:07Z"), every("1 d", tz="Europe/Berlin")]),
    st.sampled_from([crontab(minute="*/20", app=APP), crontab(hour=2, minute=30, app=APP)]),
)


@given(SCHEDULES, RECENT, SPANS, st.none() | RECENT)
def test_counting_is_going_through_them(
    when: BaseSchedule, after: datetime, span: timedelta, anchor: datetime | None
) -> None:
    """For intervals, of whole days too, with and without an anchor, and for crontabs over changes of the clocks."""
    one_by_one = list(starts_after(when, after, after + span, anchor=anchor))
    assert count_starts(when, after, after + span, anchor=anchor) == len(one_by_one)
    if one_by_one:
        assert latest_start(when, after + span, anchor=anchor) == one_by_one[-1]


def test_a_fast_schedule_over_a_year() -> None:
    """A million windows and more are counted without going through them."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for when in (schedule(0.005, app=APP), every(0.005)):
        assert count_starts(when, start, start + 365 * DAY) == 365 * 86_400 * 200


def test_the_newest_of_a_rare_schedule() -> None:
    """It is looked for further and further back."""
    leap = crontab(hour=3, minute=0, day_of_month=29, month_of_year=2, app=APP)
    assert latest_start(leap, datetime(2026, 11, 21, tzinfo=UTC)) == datetime(2024, 2, 29, 2, tzinfo=UTC)
    assert latest_start(leap, datetime(1970, 11, 21, tzinfo=UTC)) is None


# -- keys

NIGHT = "2026-11-21T02:00Z"


def test_keys_stay_as_they_are() -> None:
    """Other sides keep them: they are the same in each version of this package."""
    entry = window("nightly", NIGHT)
    assert entry.key == "1eab2f11-ee0e-8ef8-95cf-43880faa0814"
    assert replace(entry, keyed=True).key == "6b5f885c-2d75-8ac5-9b1c-1cc1a0ded9ea"
    assert replace(entry, scheduled=False).key == "e82dd541-8ea6-8d87-955a-7e270be4166b"


def test_a_key_is_of_the_window() -> None:
    """Of its entry and start, and of nothing that differs in its executions. It is the id of the window's task."""
    key = window("nightly", NIGHT).key
    assert uuid.UUID(key).version == 8
    assert key == task_id("once:", "nightly", datetime(2026, 11, 21, 2, tzinfo=timezone.utc))
    assert key == window("nightly", "2026-11-21T03:00+01:00", attempt=2, fence=9, held=False).key
    assert alert_id("once:", "nightly", window("nightly", NIGHT).start, "late").startswith("ef44ed4e-1ef9-8670-b4fa-a3")
    others = [window("Nightly", NIGHT), window("nightly", "2026-11-22T02:00Z")]
    others.append(replace(window("nightly", NIGHT), keyed=True))
    assert len({key, *(other.key for other in others)}) == 4


def test_a_child_is_known_by_its_task() -> None:
    """Its name says of which window's task it is a part."""
    assert task_of_child("child:proj.mail@report:ann") == "proj.mail"


def test_a_calls_key_is_of_its_task_id() -> None:
    """It may begin at another time when its message is redelivered, or retried."""
    with Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=OnceTask) as app:

        @app.task(bind=True, shared=False)
        def call(self) -> str:
            return self.window.key

        keys = [call.apply(task_id=task).get() for task in ("a", "a", "b")]
        assert keys[0] == keys[1] != keys[2]
        for given in (window("nightly", NIGHT), Window("nightly", window("nightly", NIGHT).start, None)):
            with executing(call, given):
                assert call() == window("nightly", NIGHT).key
