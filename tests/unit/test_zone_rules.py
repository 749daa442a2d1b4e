"""What fingerprints have of a machine's time zone data: the rules of each zone that a schedule follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.tz import gettz
from zone_files import other_rules

from celery_once_beat.rules import fingerprint, in_zone, zone_rules
from celery_once_beat.schedules import cron

_SCRIPT = """
import json
from zoneinfo import ZoneInfo
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery_once_beat.beat.entries import Entries
from celery_once_beat.schedules import Period, at, between, cron, every, excluding, union
from celery_once_beat.settings import Settings

class Own(BaseSchedule):
    def remaining_estimate(self, last_run_at):
        raise NotImplementedError
    def __repr__(self):
        return "<own>"

class Held(Own):
    def __init__(self, held):
        super().__init__()
        self.held = held

def app_in(zone):
    app = Celery("elsewhere", set_as_current=False)
    app.conf.timezone = zone
    return app

app = app_in("Europe/Berlin")
utc = app_in("UTC")
entries = Entries("", Settings(redis_url="redis://h"), {})

def mark(when, once=None, app=app):
    when.app = app
    entry = ScheduleEntry(name="e", task="t", schedule=when, options={"once": once or {}}, app=app)
    return [entries.make("e", entry).fingerprint, entries.make("e", entry, "def:1:a").fingerprint]

print(json.dumps({
    "crontab": mark(crontab(hour=5)),
    "crontab, once tz": mark(crontab(hour=5), {"tz": "Europe/Berlin"}, utc),
    "days": mark(schedule(86400)),
    "own": mark(Own()),
    "own, with a zone": mark(Held(ZoneInfo("Europe/Berlin")), app=utc),
    "own, with a schedule": mark(Held(crontab(hour=5, app=app)), app=utc),
    "cron": mark(cron("0 5 * * *"), app=app),
    "cron, tz": mark(cron("0 5 * * *", tz="Europe/Berlin"), app=utc),
    "every, tz": mark(every("1 d", tz="Europe/Berlin"), app=utc),
    "at": mark(at("2030-01-01 05:00", tz="Europe/Berlin"), app=utc)[:1],
    "union": mark(union(cron("0 5 * * *"), crontab(hour=6))),
    "between": mark(between(every(60), start="2030-07-01", tz="Europe/Berlin"), app=utc),
    "excluding": mark(excluding(every(60), [Period("2030-07-01", tz="Europe/Berlin")]), app=utc),
    "within": mark(union(excluding(cron("0 5 * * *", tz="Europe/Berlin"), ["2030-07-01"]), every(60)), app=utc),
    "same: crontab in UTC": mark(crontab(hour=5), app=utc),
    "same: crontab elsewhere": mark(crontab(hour=5), {"tz": "Asia/Tokyo"}),
    "same: own, with a zone": mark(Held(ZoneInfo("Asia/Tokyo")), app=utc),
    "same: seconds": mark(schedule(60)),
    "same: solar": mark(solar("sunrise", 52.5, 13.4)),
    "same: every": mark(every(60)),
}))
"""


def test_other_time_zone_data_makes_another_fingerprint(tmp_path: Path) -> None:
    """Of each schedule that follows the zone, also where people set it at run time, and of no other."""
    found = []
    for path in ("", other_rules(tmp_path, "Europe/Berlin", 2 * 3600)):
        env = {**os.environ, **({"PYTHONTZPATH": path} if path else {})}
        done = subprocess.run([sys.executable, "-c", _SCRIPT], env=env, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    here, there = found
    assert {name for name in here if not set(here[name]).isdisjoint(there[name])} == {
        name for name in here if name.startswith("same")
    }
    assert all(here[name] == there[name] for name in here if name.startswith("same"))


def test_the_rules_of_a_zone_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of ten thousand entries in a zone costs no more than one."""
    asked = []
    monkeypatch.setattr("celery_once_beat.rules.policy.changes", lambda zone: asked.append(zone) or [])
    monkeypatch.setattr("celery_once_beat.rules.policy._rules", {})
    app = Celery("many", set_as_current=False)
    app.conf.timezone = gettz("America/Lima")  # which has no hash
    assert len({zone_rules(crontab(minute=number % 60, app=app)) for number in range(100)}) == 1
    app = Celery("many", set_as_current=False)
    app.conf.timezone = "America/Lima"
    assert len({zone_rules(crontab(minute=number % 60, app=app)) for number in range(10_000)}) == 1
    assert len({zone_rules(cron(f"{number % 60} 5 * * *", tz="America/Lima")) for number in range(100)}) == 1
    assert asked == [gettz("America/Lima"), ZoneInfo("America/Lima")]


class Unnamed(tzinfo):
    """An own zone; its text is an address."""

    def __init__(self, hours: int) -> None:
        self.offset = timedelta(hours=hours)

    def utcoffset(self, _: datetime | None) -> timedelta:
        return self.offset

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize("when", [crontab(hour=5), schedule(86400)], ids=["crontab", "days"])
def test_a_zone_without_a_name_is_known_by_its_rules(when: crontab | schedule) -> None:
    """Else each beat would have a definition of its own, and each restart a new one: what was owed wouldn't run."""
    zones = [Unnamed(2), Unnamed(2), Unnamed(3)]
    found = [fingerprint("t", placed, None) + zone_rules(placed) for placed in (in_zone(when, zone) for zone in zones)]
    assert found[0] == found[1] != found[2]
