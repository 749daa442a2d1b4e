"""The mixin over a scheduler of another package, as it is: sqlalchemy-celery-beat's."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from processes import wait_until
from sqlalchemy_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from sqlalchemy_celery_beat.session import SessionManager
from sqlalchemy_celery_beat.tzcrontab import TzAwareCrontab
from system import System

from celery_once_beat.windows import next_start, parse_instant

SCHEDULER = "apps.sa_app:OnceScheduler"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/schedule.db"


@pytest.mark.long
def test_two_beats_over_another_base(system: System, uri: str, tmp_path: Path) -> None:
    """Windows run once, an edit is seen by both beats and nothing runs early for it; the commands read its rows."""
    system.app, system.scheduler, system.entries = "apps.sa_app", SCHEDULER, {}
    session = SessionManager().session_factory(uri)
    every = {seconds: IntervalSchedule(every=seconds, period="seconds") for seconds in (1, 2)}
    night = CrontabSchedule(minute="30", hour="2", timezone="Europe/Berlin")
    session.add_all([*every.values(), night])
    session.commit()
    tick = PeriodicTask(name="tick", task="apps.sa_app.work", schedule_model=every[1])
    session.add_all([tick, PeriodicTask(name="nightly", task="apps.sa_app.work", schedule_model=night)])
    session.commit()

    system.worker(pool="solo", env={"DATABASE": uri}).wait_ready()
    beats = [system.beat(f"beat{n}", DATABASE=uri) for n in (1, 2)]
    system.wait_done(3)
    sooner = system.account().since
    tick.schedule_model = every[2]
    session.commit()
    session.close()
    wait_until(lambda: system.account().since > sooner, "the edit is seen", 60)
    since = system.account().since
    system.wait_done(3)
    system.settle(beats)  # what is under way may come in any order
    wait_until(lambda: system.recorded().total() >= system.outcomes()["done"], "all that is done is recorded", 60)
    recorded = system.recorded()
    assert set(recorded.values()) == {1}
    later = sorted(parse_instant(start) for start in recorded if parse_instant(start) > since)
    assert later == [later[0] + n * timedelta(seconds=2) for n in range(len(later))]
    before = sorted(parse_instant(start) for start in recorded if parse_instant(start) <= since)
    assert before == [before[0] + n * timedelta(seconds=1) for n in range(len(before))]

    audit = json.loads(system.once("audit", "-S", SCHEDULER, "--json", env={"DATABASE": uri}))
    assert {fact["entry"]: fact["verdict"] for fact in audit["entries"]} == {
        "nightly": "balances", "tick": "balances",
    }  # fmt: skip


def test_its_crontab_is_computed() -> None:
    """In its own zone, over daylight saving too; not asked step by step."""
    cron = TzAwareCrontab(minute="30", hour="2", tz=ZoneInfo("Europe/Berlin"))
    gap = next_start(cron, datetime(2026, 3, 28, 12, tzinfo=timezone.utc))
    assert gap == datetime(2026, 3, 29, 1, tzinfo=timezone.utc)
