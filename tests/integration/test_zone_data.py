"""Beats whose machines have other time zone data: one of them counts, never both."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from processes import wait_until
from system import System
from zone_files import other_rules

from celery_once_beat import Schedules
from celery_once_beat.schedules import cron, write_schedule
from celery_once_beat.windows import parse_instant

ZONE = "Europe/Berlin"
WHEN = cron("*/4 * * * * *", tz=ZONE)


@pytest.mark.parametrize("stored", [False, True], ids=["of code", "set at run time"])
@pytest.mark.long
def test_beats_with_other_time_zone_data(system: System, tmp_path: Path, stored: bool) -> None:
    """The one that loaded last counts, and the other says why its own starts don't."""
    system.check_law = False  # this process computes the starts as the first beat does
    system.entries = {}
    if stored:
        with closing(Schedules(url=system.store_url)) as schedules:
            schedules.set("tick", task="apps.once_app.work", schedule=WHEN)
    else:
        system.entries = {"tick": {"task": "apps.once_app.work", "stored": write_schedule(WHEN)}}
    system.worker().wait_ready()
    first = system.beat("first")
    system.wait_done(2)
    system.beat("second", PYTHONTZPATH=other_rules(tmp_path, ZONE, 3602)).wait_ready()
    wait_until(lambda: "with other rules of its time zone" in first.log, "the first beat says what differs", 60)
    assert "time zones: beats know other rules of the zones of 'tick'" in system.once("doctor", exit_code=1)
    system.wait_done(3)
    starts = sorted(parse_instant(start).second % 4 for start in system.recorded())
    in_order = [parse_instant(start).second % 4 for start in sorted(system.recorded())]
    assert set(starts) == {0, 2}
    assert in_order == starts, "starts of both beats alternate"
