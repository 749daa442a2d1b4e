"""How late windows begin, how long they wait and run: counted in the store where each ends, by the same script."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from stage import ENTRY, Stage

from celery_once_beat.features.times.store import Histogram, read_times
from celery_once_beat.lookup import Lookup
from celery_once_beat.windows import format_instant

INF = float("inf")


def times(stage: Stage) -> Any:
    return read_times(stage.store.account(ENTRY))


def counts(stage: Stage) -> dict[str, int]:
    """How many windows each of the three has."""
    return {name: sum(histogram.counts.values()) for name, histogram in times(stage).items()}


def begin(stage: Stage, *, queued: int = 0, ran: int = 0) -> None:
    """A begun window, as if it had waited and run for so many ms."""
    stage.claim(since=stage.store.account(ENTRY).cursor)
    stage.confirm()
    stage.begin("A")
    field = f"w:{format_instant(stage.start)}"
    account = stage.raw.hget(stage.entry_key, field).split(" ")
    fence = stage.now() - ran
    account[1], account[5] = str(fence), str(fence - queued)
    stage.raw.hset(stage.entry_key, field, " ".join(account))
    stage.raw.set(stage.run_key, f"run:{fence}:A", px=30_000)
    stage.fences["A"] = fence


@pytest.mark.parametrize(
    ("late", "queued", "ran", "bounds"),
    [
        (2_000, 50, 300, (5_000, 50, 1_000)),
        (2_000, 51, 6_000, (5_000, 250, 15_000)),
        (70_000, 4_000, 65_000, (300_000, 5_000, 300_000)),
        (20_000_000, 15_000_000, 2_000_000, (INF, INF, 3_600_000)),
    ],
)
def test_a_window_is_counted_where_it_ends(stage, late, queued, ran, bounds) -> None:
    """Once in each of the three, in the bucket and with the sum that its history tells."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    stage.start = now - timedelta(milliseconds=late + ran)
    begin(stage, queued=queued, ran=ran)
    assert counts(stage) == {"late": 0, "queued": 0, "ran": 0}, "it hasn't ended"
    for _ in "the reply was lost", "so it is sent again":
        stage.finish("A")
    (window,) = Lookup(stage.store).entry(ENTRY, 1).windows
    past, millisecond = window.past, timedelta(milliseconds=1)
    assert times(stage) == {
        "late": Histogram({bounds[0]: 1}, (past.begun - past.start) // millisecond),
        "queued": Histogram({bounds[1]: 1}, queued),
        "ran": Histogram({bounds[2]: 1}, past.took // millisecond),
    }


ENDS = {
    "dead, then done": (["claim", "confirm", "begin", "lapse", "overdue", "take", "begin B", "finish B"], (1, 0, 1)),
    "retried, then done": (["claim", "confirm", "begin", "hand_over", "begin again", "finish"], (1, 0, 1)),
    "its process died for good": (["claim", "confirm", "begin", "spend", "lapse", "overdue", "take"], (1, 1, 0)),
    "ordered": (["claim", "confirm", "begin", "finish", "lapse", "order", "begin", "finish"], (1, 2, 2)),
    "expired in the queue": (["claim", "confirm", "discard"], (0, 0, 0)),
    "revoked while it ran": (["claim", "confirm", "begin", "revoke"], (1, 1, 1)),
}
STEPS = {
    "begin B": lambda s: s.begin("B"),
    "begin again": lambda s: s.begin("A", retry=1),
    "finish B": lambda s: s.finish("B"),
    "order": lambda s: s.backfill(),
    "discard": lambda s: s.discard("revoked"),
    "revoke": lambda s: s.finish("A", "revoked"),
    "spend": lambda s: s.raw.hset(s.entry_key, "max_attempts", 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_known_of_each_end(stage: Stage, end: str) -> None:
    """A window that never began has no times; one that began twice waited twice; a dead run's end nobody knows.

    An order is as late as somebody was to order it, so it has no lateness.
    """
    steps, (late, queued, ran) = ENDS[end]
    for step in steps:
        STEPS[step](stage) if step in STEPS else getattr(stage, step)()
    assert stage.state() == "closed"
    assert counts(stage) == {"late": late, "queued": queued, "ran": ran}


#: Counting one more window in these isn't possible.
GARBAGE = ["garbage", "1 2 3 linf:x", f"1 2 3 linf:{'9' * 15}", f"{'9' * 15} 2 3 linf:1", f"1 2 3{' l50:1' * 500}"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_stops_nothing(stage: Stage, garbage: str) -> None:
    """The window ends as ever, and the field stays as it is."""
    stage.raw.hset(stage.entry_key, "times", garbage)
    begin(stage)
    stage.finish("A")
    assert stage.counts() == {"done": 1}
    assert stage.raw.hget(stage.entry_key, "times") == garbage
