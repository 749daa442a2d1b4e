"""docs/windows.md: the table of what runs late is what the package decides."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from doc_pages import ROOT

from celery_once_beat.rules.policy import EntryPolicy, next_steps
from celery_once_beat.settings import Settings

TEXT = (ROOT / "docs/windows.md").read_text()
DUE = [datetime(2026, 11, 21, 10, 10, tzinfo=timezone.utc) + n * timedelta(minutes=10) for n in range(6)]
NOW = datetime(2026, 11, 21, 11, 5, tzinfo=timezone.utc)


def said(cell: str) -> list[str]:
    return re.findall(r"\d\d:\d\d", cell)


def test_what_runs_late() -> None:
    """Each row: the windows that run, in order, and those that are recorded as missed; together all six."""
    table = TEXT.partition("<!-- catch-up -->")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    assert len(rows) == 5
    for catch_up, grace, most, run, missed in rows:
        once: dict[str, Any] = {"catch_up": catch_up.strip('`"')}
        once |= {"grace": int(grace)} if grace else {}
        once |= {"max_catch_up": int(most)} if most else {}
        policy = EntryPolicy.of("entry", once, None, Settings(redis_url="redis://localhost"))
        steps = next_steps(DUE, NOW, policy)
        assert [f"{step.start:%H:%M}" for step in steps if step.run] == said(run), once
        assert [f"{start:%H:%M}" for step in steps for start in step.all_missed] == said(missed), once
        assert len(said(run)) + len(said(missed)) == len(DUE)


def test_the_defaults_are_the_settings() -> None:
    """What the table above it calls default is the default."""
    settings = Settings(redis_url="redis://localhost")
    table = TEXT.partition("## What runs late")[2].partition("\n\n")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| `(?:once_beat_)?(\w+)` \|.*\| (.*?) \|$", table, re.MULTILINE))
    assert shown == {
        "tolerance": f"{settings.tolerance:g} s",
        "catch_up": f'`"{settings.catch_up}"`',
        "max_catch_up": str(settings.max_catch_up),
        "grace": "none" if settings.grace is None else f"{settings.grace:g} s",
    }
