"""``make whencost``: what it costs to find the next start, in microseconds of CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from celery.schedules import crontab

from celery_once_beat.schedules import between, cron, every, excluding, union
from celery_once_beat.windows import next_start

ROUNDS = 5
LOOKS = 2000
HOLIDAYS = {f"{year}-{day}": "holiday" for year in range(2020, 2035) for day in ("01-01", "05-01", "12-25", "12-26")}


def schedules() -> Iterator[Any]:
    """Celery's crontabs, cron lines, and what is made of them."""
    app = Celery("cost", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    yield crontab(app=app)
    yield crontab(minute="*/5", app=app)
    yield crontab(minute=30, hour=2, app=app)
    yield crontab(minute=0, hour=9, day_of_week="mon-fri", app=app)
    yield crontab(minute=0, hour=0, day_of_month=1, app=app)
    yield crontab(minute=0, hour=0, day_of_month=29, month_of_year=2, day_of_week=1, app=app)
    nightly = cron("30 2 * * *", tz="Europe/Berlin")
    yield nightly
    yield cron("*/15 * * * * *", tz="Europe/Berlin")
    yield cron("0 9 * * mon#2", tz="Europe/Berlin")
    yield every("90 min")
    yield every("1 d", tz="Europe/Berlin")
    yield between(nightly, start="2020-01-01", end="2100-01-01")
    yield excluding(nightly, HOLIDAYS)
    yield union(nightly, cron("0 12 * * *", tz="Europe/Berlin"))
    yield excluding(union(nightly, cron("0 12 * * *", tz="Europe/Berlin")), cron("* * * * sun", tz="Europe/Berlin"))


def cost(when: Any) -> float:
    """Microseconds of one look, the best of a few rounds: a walk from start to start, from many instants."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for number in range(LOOKS // 20):
            start: datetime | None = datetime(2026, 1, 1, tzinfo=timezone.utc) + number * timedelta(hours=89)
            for _ in range(20):
                start = start and next_start(when, start)
        rounds.append((time.process_time() - began) / LOOKS * 1e6)
    return min(rounds)


if __name__ == "__main__":
    for each in schedules():
        sys.stdout.write(f"{cost(each):6.1f} us  {repr(each)[:90]}\n")
