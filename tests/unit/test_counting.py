"""Starts are counted as if one by one, and the newest one is found, whatever the schedule."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_once_beat.rules.starts import count_starts, latest_start, starts_after
from celery_once_beat.schedules import every

UTC = timezone.utc
APP = Celery("counting", set_as_current=False)
APP.conf.timezone = "Europe/Berlin"
DAY = timedelta(days=1)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))
SPANS = st.timedeltas(-DAY, 3 * DAY)
SCHEDULES = st.one_of(
    st.timedeltas(timedelta(minutes=3, microseconds=7), 2 * DAY).map(lambda every: schedule(every, app=APP)),
    st.sampled_from([schedule(4440.0, app=APP), schedule(DAY, app=APP), schedule(2 * DAY, app=APP)]),
    st.sampled_from([every(4440), every(4440, anchor="2026-05-01T00:07Z"), every("1 d", tz="Europe/Berlin")]),
    st.sampled_from([crontab(minute="*/20", app=APP), crontab(hour=2, minute=30, app=APP)]),
)


@given(SCHEDULES, INSTANTS, SPANS, st.none() | INSTANTS)
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
