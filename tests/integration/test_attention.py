"""What is wrong, or only seems so, by status and doctor; tests/board/test_alerts.py has what metrics tell too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import filled
import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from processes import wait_until
from servers import RedisServer
from system import System

from celery_once_beat import OnceTask
from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.cli import once as once_group
from celery_once_beat.lookup import Lookup
from celery_once_beat.schedules import check_words
from celery_once_beat.status import make_report, take_snapshot
from celery_once_beat.store import Begun, ClaimRequest, Confirmation, Published, Store, shard_of
from celery_once_beat.windows import WindowKey


@pytest.fixture
def reported(redis_url: str, store: Store) -> Callable[..., Any]:
    """``reported(entry, change)``: what is said of an hour's window of that entry, once it was changed."""
    app = Celery("attention", broker=redis_url, set_as_current=False, task_cls=OnceTask)
    app.task(filled.fill, name="proj.work", shared=False)
    app.conf.once_beat_redis_url = redis_url

    def report(entry: dict[str, Any], change: Callable[[Any], None]) -> tuple[Any, str]:
        app.conf.beat_schedule = {"tick": {"task": "proj.work", "schedule": 3600.0, **entry}}
        schedule = load_schedule(app, store.settings)
        rows = list(schedule.entries)
        filled.load(store, rows, timedelta(hours=1))
        (window,) = filled.claim(store, rows)
        store.confirm_many([Confirmation(window, 1, Published.SENT, 600.0, "mails")])
        store.consume("celery@a", "broker", ["mails"])
        filled.beat_lives(store)
        change(window)
        context = CLIContext(app=app, no_color=True, workdir=None)
        doctor = CliRunner().invoke(once_group, ["doctor"], obj=context)
        (found,) = make_report(take_snapshot(Lookup(store), schedule), schedule).entries
        return found, doctor.output

    return report


@pytest.mark.parametrize(
    ("entry", "seconds", "begun", "due", "reasons", "words"),
    [
        ({}, 3_500, True, 31, (), ""),
        ({}, 3_700, True, 31, ("hung",), "1 running for 1 h 1 min on a, too few before are done to compare"),
        ({}, 3_700, True, 12, ("silent",), "1 running, not heard of for "),
        ({"options": {"countdown": 300}}, 90, False, 31, (), ""),
        ({}, 90, False, 31, ("stuck",), "1 published, and begun by no worker for 1 min; the queue 'mails' has 1 "),
    ],
)
def test_what_takes_long(reported, store, entry, seconds: float, begun: bool, due: int, reasons: Any, words: str):
    """Without a history the interval says by when a run should have ended, after an hour at least.

    Whoever doesn't renew its lease is silent. A countdown is no delay of a worker's. Of a queue that was purged doctor
    says what to type.
    """

    def age(window: Any) -> None:
        if begun:
            assert isinstance(store.begin(window, "a:1:x", 30.0), Begun)
        with redis.Redis.from_url(store.settings.redis_url) as client:
            filled.backdate(client, store, window, timedelta(seconds=seconds), timedelta(seconds=due))

    found, doctor = reported(entry, age)
    assert found.reasons == reasons
    assert words in "; ".join(found.attention)
    purged = "it has 0 messages, the broker says\n      → celery once republish --queue mails\n"
    assert (purged in doctor) == (reasons == ("stuck",))


def test_what_waits_behind_one_that_hangs(reported, store: Store) -> None:
    """Both are said, and that the queue's worker is busy with it."""

    def hang(window: Any) -> None:
        assert isinstance(store.begin(window, "celery@a:1:x", 30.0), Begun)
        behind = WindowKey("tick", window.start + timedelta(hours=1))
        store.claim_many(filled.BEAT, [ClaimRequest(behind, window.start, store.account("tick").fingerprint)])
        store.confirm_many([Confirmation(behind, 1, Published.SENT, 600.0, "mails")])
        with redis.Redis.from_url(store.settings.redis_url) as client:
            for each, seconds in ((window, 3_700), (behind, 90)):
                filled.backdate(client, store, each, timedelta(seconds=seconds), timedelta(seconds=31))

    found, _ = reported({}, hang)
    assert found.reasons == ("behind", "hung", "stuck"), "the second one's time hasn't come"
    assert "the queue 'mails' has 1 worker, busy with 1 window, of which 'tick' hangs" in found.attention[2]


@pytest.mark.parametrize(("by", "reason"), [("pause_after_failures", "stopped"), ("anna", "paused")])
def test_an_entry_is_paused(reported, store: Store, by: str, reason: str) -> None:
    """By its failures, or by somebody: that is said, and by whom, since when and why."""
    found, _ = reported({}, lambda _: store.set_paused("tick", check_words(by, "2 in a row failed"), paused=True))
    assert (found.reasons, found.stopped) == ((reason,), reason == "stopped")
    assert found.attention == (f"paused less than a minute ago by {by}: 2 in a row failed",)


def test_what_is_skipped_in_a_row(reported, store: Store, raw: redis.Redis) -> None:
    """Three windows, while another one runs; until one runs again."""

    def skip(_: Any) -> None:
        past = "2026-01-01T0{}:00:00 {} 1 0 0 0 - beat"
        raw.rpush(store.keys.of_entry("history", "tick"), *(past.format(9 - n, "skipped") for n in range(3)))
        raw.expire(store.keys.of_entry("history", "tick"), 60)

    found, _ = reported({}, skip)
    assert (found.skipped, found.attention) == (3, ("the last 3 windows are skipped",))


@pytest.mark.parametrize(("field", "number"), [("open", "-inf"), ("c:done", "9" * 40)])
def test_foreign_numbers(reported, store: Store, raw: redis.Redis, field: str, number: str) -> None:
    """A score that is no time, a counter of 40 digits: they are named at their entry; so are foreign workers."""

    def spoil(_: Any) -> None:
        if field == "open":
            raw.zadd(store.keys.of_shard("open", shard_of("tick")), {"tick@2026-01-01T00:00:00.000000Z": number})
        else:
            raw.hset(store.entry_key("tick"), field, number)
        raw.zadd("once:workers", {"w b q": "inf"})

    found, doctor = reported({}, spoil)
    assert number[:39] in " ".join(found.attention)
    assert re.search(r"keys: unreadable: .*'w b q'", doctor)


@pytest.mark.long
def test_an_entry_that_cant_be_loaded_stops_no_other(start_redis: Callable[..., RedisServer], system: System) -> None:
    """A beat that starts while Redis is full claims what Redis knows, and loads the others when there is room."""
    system.check_law = False
    system.use_store(start_redis(args=("--maxmemory-policy", "noeviction")))
    beat = system.beat().wait_ready()
    wait_until(lambda: system.store.account("tick"), "it is loaded", 60)
    with system.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        beat.stop()
        assert "no beat is heard of, and Redis is full: it may refuse" in system.once("status", exit_code=1)
        system.entries = {**system.entries, "new": system.entries["tick"]}
        system.beat("second").wait_ready()
        before = system.account("tick").cursor
        wait_until(lambda: (system.account("tick").cursor - before).total_seconds() > 20, "it claims", 40)
        assert system.store.account("new") is None
        client.config_set("maxmemory", 0)
    wait_until(lambda: system.store.account("new"), "it is loaded when there is room", 60)


def ping(system: System) -> str:
    asked = system.celery("once", "ping")
    asked.wait()
    return asked.log


@pytest.mark.long
def test_failing_ticks_are_seen(system: System, tmp_path: Path) -> None:
    """By ping, status, doctor and metrics, with the reason; and when they work again.

    No sys.exit() of a hook or of a receiver ends the beat, SIGTERM does.
    """
    fails = tmp_path / "fails"
    system.scheduler = "apps.failing_beat:Failing"
    system.worker().wait_ready()
    beat = system.beat(FAILS=str(fails)).wait_ready()
    system.wait_done(1)
    (name,) = system.store.snapshot().beats
    assert system.once("ping", "--beat", name) == f"{name}\n"
    fails.touch()
    beat.wait_log("a tick failed: LookupError")
    found = wait_until(lambda: "its ticks fail" in (said := ping(system)) and said, "a probe sees it", 30)
    assert found.startswith(f"{name}: its ticks fail, for ")
    assert found.endswith(": LookupError: no such\n")
    shown = json.loads(system.once("ping", "--json", exit_code=1))
    assert (shown["alive"], shown["beats"], [*shown["failing"]]) == (False, [], [name])
    assert f"{name} claims nothing: its ticks fail, for " in system.once("status", exit_code=1)
    assert f"ticks: beat {name}: its ticks fail, for " in system.once("doctor", exit_code=1)
    assert "celery_once_beat_beats_failing 1.0" in system.once("metrics")
    fails.write_text("a hook that raises SystemExit")
    beat.wait_log("a tick failed: SystemExit")
    fails.unlink()
    beat.wait_log("ticks work again")
    system.wait_done(1)
    wait_until(lambda: ping(system) == f"{name}\n", "a probe sees it", 30)
    system.settle([beat])
    system.check_each_once()
