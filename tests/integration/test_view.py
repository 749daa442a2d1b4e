"""What board and metrics look at: an app's schedule and store, again and again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import filled
import pytest
import redis
from celery import Celery
from celery.beat import Scheduler

from celery_once_beat import OnceTask
from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.errors import SettingError, StoreUnavailableError
from celery_once_beat.lookup import Lookup
from celery_once_beat.settings import Settings
from celery_once_beat.status import poll as view
from celery_once_beat.status.poll import View
from celery_once_beat.store.keys import shard_of

HOUR = {"task": "proj.task", "schedule": timedelta(hours=1)}


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("viewed", broker=redis_url, set_as_current=False, task_cls=OnceTask)

    @app.task(name="proj.task", shared=False)
    def task() -> None: ...

    app.conf.beat_schedule = {name: dict(HOUR) for name in ("a", "b", "c")}
    return app


@pytest.fixture
def views(app: Celery, close_later: Callable[[Any], Any]) -> Callable[..., View]:
    return lambda **options: close_later(View(app, Settings.from_app(app), **options))


def test_what_changes_is_seen_at_the_next_look(app: Celery, views: Any, raw: redis.Redis) -> None:
    """A pause, a window that is claimed, one that is overdue by time alone: whoever looks again sees it."""
    made = views()
    rows = list(load_schedule(app, Settings.from_app(app)).entries)
    filled.load(made.store, rows, timedelta(hours=2, minutes=1))
    filled.execute(made.store, filled.claim(made.store, rows))

    def told() -> dict[str, tuple[bool, int, int]]:
        return {each.entry: (each.paused, each.open, each.overdue) for each in made.snapshot().report.entries}

    assert set(told().values()) == {(False, 0, 0)}
    made.store.set_paused("a", paused=True)
    (window,) = filled.claim(made.store, [row for row in rows if row.name == "b"])
    assert told() == {"a": (True, 0, 0), "b": (False, 1, 0), "c": (False, 0, 0)}
    shard = made.store.keys.of_shard("open", shard_of("b"))
    raw.zadd(shard, {raw.zrange(shard, 0, -1)[0]: 1})
    assert told()["b"] == (False, 1, 1)
    filled.execute(made.store, [window])
    assert told()["b"] == (False, 0, 0)


def test_an_entry_that_raises_hides_no_other(app: Celery, views: Any) -> None:
    """Of a task whose property raises here, or ends the process: it is named, and all others are shown."""
    raises: list[bool] = []

    class Asks(OnceTask):
        name = "proj.asks"
        once_lease = property(lambda _: sys.exit(3) if raises else 5.0)

    app.register_task(Asks())
    app.conf.beat_schedule["raises"] = {"task": "proj.asks", "schedule": 60.0}
    made = views()
    raises.append(True)  # behind its definition, which has a guard of its own
    shown = {entry.entry: entry for entry in made.snapshot().report.entries}
    assert shown.keys() == {"a", "b", "c", "raises"}
    assert (shown["raises"].kind, shown["raises"].attention) == ("left out", ("can't run: SystemExit(3)",))
    assert {shown[name].kind for name in "abc"} == {"scheduled"}


class FromDatabase(Scheduler):
    """A scheduler whose entries come from elsewhere, as a database's do."""

    entries: Any = ()

    def all_as_schedule(self) -> dict[str, Any]:
        if isinstance(self.entries, Exception):
            raise self.entries
        return {name: self.Entry(name=name, task="proj.task", schedule=HOUR["schedule"], app=self.app)
                for name in self.entries}  # fmt: skip


def test_a_schedule_that_changes(views: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Entries of a database come and go; while it is away the last ones are shown, and that is logged once.

    A scheduler that isn't there is said at the start.
    """
    with pytest.raises(SettingError, match="found 'nowhere:Scheduler'"):
        views(scheduler="nowhere:Scheduler")
    monkeypatch.setattr(view, "_SCHEDULE_LASTS", 0.0)
    made = views(scheduler=f"{__name__}:FromDatabase")

    def names() -> set[str]:
        return {entry.entry for entry in made.snapshot().report.entries}

    assert names() == {"a", "b", "c"}
    monkeypatch.setattr(FromDatabase, "entries", {"new"})
    assert names() == {"a", "b", "c", "new"}
    monkeypatch.setattr(FromDatabase, "entries", RuntimeError("can't connect with password s3cret"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert names() == {"a", "b", "c", "new"}
    lines = [record for record in caplog.records if getattr(record, "action", "") == "schedule_unreadable"]
    assert len(lines) == 1
    assert "s3cret" not in caplog.text
    monkeypatch.setattr(FromDatabase, "entries", ())
    assert names() == {"a", "b", "c"}


def test_a_look_that_breaks_off_hides_nothing(app, views, redis_url, monkeypatch) -> None:
    """It found what has changed, and Redis went away before that was read: the next look reads it."""
    made = views()
    filled.fill(made.store, load_schedule(app, made.store.settings), 2, timedelta(hours=2, minutes=1))
    made.snapshot()
    made.store.set_paused("b", paused=True)
    entries = Lookup.entries

    def away(*given: Any) -> None:
        entries(*given)
        raise StoreUnavailableError("Redis: gone")

    monkeypatch.setattr(Lookup, "entries", away)
    with pytest.raises(StoreUnavailableError):
        made.snapshot()
    monkeypatch.setattr(Lookup, "entries", entries)
    assert [entry.entry for entry in made.snapshot().report.entries if entry.paused] == ["b"]
