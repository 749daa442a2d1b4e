"""``celery once prune``: rows of windows that nobody executes again."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from databases import Base
from sqlalchemy.orm import Session
from system import System

from celery_once_beat.contrib.sqlalchemy import effects, prune
from celery_once_beat.testing import window
from celery_once_beat.windows import format_instant


def fill(base: Base, number: int = 1500) -> None:
    """So many rows of 89 days ago, and of 91."""
    now = datetime.now(timezone.utc)
    row = {"entry": "old", "start": "", "step": "", "attempt": 1, "execution": ""}
    rows = [
        {**row, "id": f"{days}-{n}", "recorded_at": format_instant(now - timedelta(days=days, seconds=n))}
        for days in (89, 91)
        for n in range(number)
    ]
    with base.engine.begin() as connection:
        connection.execute(effects.insert(), rows)


@pytest.mark.long
def test_old_rows_go(base: Base) -> None:
    """In batches, each committed; what is younger stays."""
    fill(base)
    assert prune(base.engine, timedelta(days=90)) == 1500
    assert {row.id.partition("-")[0] for row in base.rows()} == {"89"}
    assert prune(base.engine, timedelta(days=90)) == 0


@pytest.mark.long
def test_the_command(system: System, sqlite: Base) -> None:
    """It prints how many, and warns if what it deletes may still be needed."""
    fill(sqlite, 3)
    with Session(sqlite.engine) as session, session.begin():
        window("nightly", "2026-11-21T02:00Z").record(session)
    url = {"settings": {"once_beat_effects_url": sqlite.url}}
    assert system.once("prune", "--older-than", "90d", env=url) == "deleted: 3\n"
    said = system.once("prune", "--older-than", "1h", env=url)
    assert said == (
        "once: rows younger than once_beat_retention (1 d 0 h) are deleted: a window of that age may run again, and "
        "would be written twice; keep rows for longer than that, and than any outage of your workers\ndeleted: 3\n"
    )
    assert [row.entry for row in sqlite.rows()] == ["nightly"]


@pytest.mark.long
def test_without_sqlalchemy_the_extra_is_named(system: System) -> None:
    """By the command; a body that gives ``record`` something else is told what it expects."""
    without = "import sys; sys.modules['sqlalchemy'] = None\n"
    command = f"{without}from celery.__main__ import main; sys.exit(main())"
    body = f"{without}from celery_once_beat.testing import window; window('e', '2026-11-21T02:00Z').record(object())"
    env = system.env(settings={"once_beat_effects_url": "sqlite://"})
    arguments = ["-A", "apps.once_app", "once", "prune", "--older-than", "90d"]
    pruned = system.procs.start([sys.executable, "-c", command, *arguments], name="prune", env=env)
    assert pruned.wait() == 2
    assert pruned.log.startswith("once: prune needs an extra: pip install 'celery-once-beat[sqlalchemy]' (")
    refused = system.procs.start([sys.executable, "-c", body], name="record", env=env)
    assert refused.wait() == 1
    assert "expected a Session or Connection of SQLAlchemy, which isn't installed" in refused.log


@pytest.mark.parametrize(
    ("url", "age", "status", "said"),
    [
        (None, "90d", os.EX_CONFIG, "once_beat_effects_url: not set, expected SQLAlchemy's URL of the database"),
        ("sqlite:///{}", "90d", os.EX_UNAVAILABLE, "found no table once_effects in the"),
        ("postgresql://user:pass@word:secret@host/name", "90d", os.EX_CONFIG, "found one whose port is no number, exp"),
        ("sqlite:///{}", "99999999w", 2, "--older-than: found '99999999w', expected"),
    ],
)
def test_what_is_wrong_is_one_line(
    system: System, tmp_path: Any, url: str | None, age: str, status: int, said: str
) -> None:
    """With an exit status that says whose it is to mend."""
    settings = {} if url is None else {"once_beat_effects_url": url.format(tmp_path / "empty.db")}
    printed = system.once("prune", "--older-than", age, exit_code=status, env={"settings": settings})
    assert printed.startswith("once: ")
    assert said in printed
    assert printed.count("\n") == 1
    assert "secret" not in printed
