"""``spread``: entries of one schedule start one after the other, each always at the same moment."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.beat import ScheduleEntry
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from celery_once_beat.beat.entries import Entries
from celery_once_beat.rules.policy import spread_offset
from celery_once_beat.settings import Settings
from celery_once_beat.windows import next_start, starts_after

T0 = datetime(2026, 11, 21, 12, 30, tzinfo=timezone.utc)
HOURLY = crontab(minute=0)


def rows(**entries: dict[str, Any]) -> Entries:
    made = Entries("beat", Settings(), {})
    made.refresh({
        name: ScheduleEntry(name=name, task="t", schedule=HOURLY, options={"once": {"tracked": True, **once}}, app=None)
        for name, once in entries.items()
    })  # fmt: skip
    return made


def test_a_thousand_entries_are_spread() -> None:
    """Over the whole of the minute, none beyond it; and the same entry falls on the same moment each time."""
    offsets = [spread_offset(f"tenant-{number}", 60.0) for number in range(1000)]
    assert all(timedelta(0) <= offset < timedelta(seconds=60) for offset in offsets)
    busiest = max(sum(int(offset.total_seconds()) == second for offset in offsets) for second in range(60))
    assert busiest < 60, "some seventeen a second would be even"
    assert offsets == [spread_offset(f"tenant-{number}", 60.0) for number in range(1000)]


def test_each_start_is_the_schedules_and_the_offset() -> None:
    """Windows are as many as without it, each so much later; after one start comes the next."""
    made = rows(tenant={"spread": 600}, plain={})
    row, plain = made.get("tenant"), made.get("plain")
    assert row is not None
    assert plain is not None
    offset = spread_offset("tenant", 600)
    assert offset > timedelta(0)
    start, found = T0, []
    for _ in range(5):
        start = row.after(start)
        found.append(start - offset)
    assert found == list(starts_after(HOURLY, T0, T0 + timedelta(hours=5)))
    assert plain.after(T0) == next_start(HOURLY, T0)


def test_a_changed_spread_is_another_definition() -> None:
    """Beats that spread differently mustn't both claim; without it a definition is what it was before."""
    marks = {
        name: rows(tenant=once).get("tenant").fingerprint
        for name, once in (("a", {"spread": 60}), ("b", {"spread": 61}), ("c", {}), ("d", {"spread": 0}))
    }
    assert len(set(marks.values())) == 3
    assert marks["c"] == marks["d"]


@given(st.text(max_size=50), st.floats(0, 1e6))
def test_an_offset_is_within_its_spread(name: str, spread: float) -> None:
    """From 0 up to the spread, in whole milliseconds."""
    offset = spread_offset(name, spread)
    assert timedelta(0) <= offset <= timedelta(seconds=spread)
    assert not offset.microseconds % 1000
