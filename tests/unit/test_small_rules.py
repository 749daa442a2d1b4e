"""Rules of a line or two, which larger tests pass by."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule, crontab

from celery_once_beat.rules import fingerprint, in_zone
from celery_once_beat.rules.checks import app_findings
from celery_once_beat.schedules import between, cron, every
from celery_once_beat.schedules.definition import _write
from celery_once_beat.schedules.periods import LeftOut, _apart
from celery_once_beat.settings import Settings

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
BERLIN = ZoneInfo("Europe/Berlin")


def test_the_bounds_of_a_schedule_in_words() -> None:
    """Each that there is, after the schedule's own."""
    nine, end = cron("0 9 * * *"), T0 + timedelta(days=30)
    assert between(nine, start=T0, end=end).words().endswith(", from 2026-01-01T00:00:00Z, until 2026-01-31T00:00:00Z")
    assert "from" not in between(nine, end=end).words()


def test_only_whole_days_need_a_zone() -> None:
    """Others are the same instants everywhere."""
    assert [zone.key for zone in every("2d").in_zone(BERLIN).zones()] == ["Europe/Berlin"]
    part = every("90 min")
    assert part.in_zone(BERLIN) is part


def test_a_schedule_in_a_zone_has_its_app() -> None:
    """A user's own kind of crontab may ask it."""
    app = Celery("proj", set_as_current=False)
    assert in_zone(crontab(app=app), BERLIN).app is app


def test_apps_that_share_their_keys() -> None:
    """Two beats of one app may; a beat of which the app isn't known says nothing."""
    settings = Settings(redis_url="redis://localhost")
    assert not list(app_findings([("a", "shop"), ("b", "shop"), ("c", None)], settings))
    (found,) = app_findings([("a", "shop"), ("b", "till"), ("c", None)], settings)
    assert "beats of 2 apps" in found.found
    assert "till, as b" in found.found


def test_spans_that_touch() -> None:
    """Those of one name are one; another's is cut where the first one ends."""
    days = [T0 + timedelta(days=number) for number in range(4)]
    same = [LeftOut(days[0], days[1], "x"), LeftOut(days[1], days[2], "x")]
    assert _apart(same) == [LeftOut(days[0], days[2], "x")]
    other = [LeftOut(days[0], days[2], "x"), LeftOut(days[1], days[3], "y")]
    assert _apart(other) == [LeftOut(days[0], days[2], "x"), LeftOut(days[2], days[3], "y")]
    within = [LeftOut(days[0], days[3], "x"), LeftOut(days[1], days[2], "y")]
    assert _apart(within) == within[:1]


def test_order_makes_no_other_definition() -> None:
    """Neither that of an argument's names, nor that of a set in the text of a schedule."""
    assert _write({"b": 1, "a": 2}) == _write({"a": 2, "b": 1})
    prints = set()
    for members in ("{10, 20}", "{20, 10}"):
        kind = type("Own", (BaseSchedule,), {"__repr__": lambda self, members=members: f"<Own {members}>"})
        prints.add(fingerprint("task", kind(), None))
    assert len(prints) == 1
