"""docs/windows.md and docs/overlap.md: what runs late, and what waits, is what the package decides."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from doc_pages import ROOT

from celery_once_beat.options import OVERLAP
from celery_once_beat.rules.policy import EntryPolicy, next_steps
from celery_once_beat.settings import Settings
from celery_once_beat.store import Begun, ClaimRequest, Closed, Ending, LoadRequest, Store, Taken, Waits
from celery_once_beat.windows import WindowKey

TEXT = (ROOT / "docs/windows.md").read_text()
OVERLAPS = (ROOT / "docs/overlap.md").read_text()
DUE = [datetime(2026, 11, 21, 10, 10, tzinfo=timezone.utc) + n * timedelta(minutes=10) for n in range(6)]
NOW = datetime(2026, 11, 21, 11, 5, tzinfo=timezone.utc)


def rows_of(text: str, name: str) -> list[list[str]]:
    """The cells of the table behind this comment, without its heading."""
    table = text.partition(f"<!-- {name} -->")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def said(cell: str) -> list[str]:
    return re.findall(r"\d\d:\d\d", cell)


def test_what_runs_late() -> None:
    """Each row: the windows that run, in order, and those that are recorded as missed; together all six."""
    rows = rows_of(TEXT, "catch-up")
    assert len(rows) == 5
    for catch_up, grace, most, run, missed in rows:
        once: dict[str, Any] = {"catch_up": catch_up.strip('`"')}
        once |= {"grace": int(grace)} if grace else {}
        once |= {"max_catch_up": int(most)} if most else {}
        policy = EntryPolicy.of("entry", once, None, Settings(redis_url="redis://localhost"))
        steps = next_steps(DUE, NOW, policy)
        assert [f"{step.start:%H:%M}" for step in steps if step.run] == said(run), once
        assert [f"{start:%H:%M}" for step in steps for start in step.missed] == said(missed), once
        assert len(said(run)) + len(said(missed)) == len(DUE)


def played(store: Store, overlap: str) -> tuple[list[str], list[str]]:
    """The windows of 02:00 to 05:00 that run, in order, and those that are skipped, as the page's example goes."""
    night = datetime(2026, 1, 1, 1, tzinfo=timezone.utc)
    limits = EntryPolicy(overlap=overlap)
    store.load_many([LoadRequest(overlap, "beat", "mark", 86400.0, limits, known=night)])
    windows = [WindowKey(overlap, night + timedelta(hours=n)) for n in range(5)]
    running, ran, skipped = [], [], []

    def begin(window: WindowKey) -> None:
        reply = store.begin(window, str(window.start.hour), 30.0)
        if isinstance(reply, Begun):
            running.append((window, reply.fence))
            ran.append(f"{window.start:%H:%M}")
        elif isinstance(reply, Closed):
            skipped.append(f"{window.start:%H:%M}")
        else:
            assert isinstance(reply, Waits)
            skipped.extend(f"{start:%H:%M}" for start in reply.skipped)

    for before, window in itertools.pairwise(windows):
        store.claim_many("beat", [ClaimRequest(window, before.start, "mark")])
        begin(window)
    while running:
        window, fence = running.pop(0)
        store.finish(Ending(window, str(window.start.hour), fence, "done"))
        shards = store.overdue("beat", datetime.now(timezone.utc), 10).shards
        for due in (each for swept in shards for each in swept.windows):
            assert isinstance(store.take_many("beat", [(due, "mark")])[0], Taken)
            begin(due)
    return ran, skipped


def test_overlap(store: Store) -> None:
    """Each row of the example is what the store does; every policy has its row."""
    rows = rows_of(OVERLAPS, "overlap")
    assert [row[0].strip('`"') for row in rows] == list(OVERLAP)
    for overlap, _, run, skipped in rows:
        ran, over = played(store, overlap.strip('`"'))
        assert (ran, sorted(over)) == (said(run), said(skipped)), overlap
