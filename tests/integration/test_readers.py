"""What status, audit, doctor, metrics and board show is what the beats run, whatever code the process has that asks."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import filled
import pytest
import redis
from celery import Celery
from celery.schedules import schedule as schedule_of
from processes import Proc, wait_until
from prometheus_client.parser import text_string_to_metric_families
from servers import RedisServer
from system import System

from celery_once_beat.beat.schedule import load_schedule
from celery_once_beat.cli.context import Project
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.settings import Settings
from celery_once_beat.status import make_report, take_snapshot
from celery_once_beat.store import BeatReport, Begun, ClaimRequest, Confirmation, Loaded, LoadRequest, Published, Store
from celery_once_beat.windows import WindowKey, format_instant

WORK = "apps.once_app.work"
RARE = {"task": WORK, "every": 3600.0}
SECOND = {"task": WORK, "every": 1.0}


def told(system: System, **env: Any) -> dict[str, Any]:
    found = system.celery("once", "status", "--json", **env)
    found.wait(120)
    return dict(json.loads(found.log))


def by_name(report: dict[str, Any]) -> dict[str, Any]:
    return {entry["entry"]: entry for entry in report["entries"]}


def served(system: System, **env: Any) -> tuple[Proc, str]:
    proc = system.celery("once", "metrics", "--port", "0", name="exporter", **env)
    return proc, proc.wait_log(r"the metrics are at (http://\S+)")[1]


def series(url: str) -> dict[tuple[str, str], float]:
    """Each gauge and counter of an entry, by its name and the entry's."""
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, sample.labels.get("entry", "")): sample.value for sample in samples}


@pytest.mark.long
def test_readers_show_what_the_beats_run(system: System) -> None:
    """Entries and definitions are the beats'; by which this process's code differs is one line, and no alarm."""
    system.check_law = False
    system.entries = {"both": RARE, "there": {"task": WORK, "cron": "30 2 29 2 *"}, "changed": SECOND}
    system.beat().wait_ready()
    code = {"both": RARE, "here": RARE, "changed": {"task": WORK, "every": 7200.0}}
    wait_until(lambda: system.store.account("changed"), "all are loaded", 60)
    wait_until(lambda: not told(system, entries=code)["beats"][0]["unloaded"], "the beat says so", 60)
    system.store.set_paused("changed", paused=True)

    report = told(system, entries=code)
    entries = by_name(report)
    assert {name: entry["schedule"] for name, entry in entries.items()} == {
        "both": "every 1 h",
        "there": "30 2 29 2 *",
        "changed": "every 1 s",
    }
    assert entries["there"]["next"].endswith("-02-29T02:30:00.000000Z")
    assert [name for name, entry in entries.items() if entry["attention"]] == ["changed"], "for its pause alone"
    assert report["code"] == (
        "This process's code isn't what the beats run, which is shown: no beat runs 'here'; not in this code: 'there'; "
        "of another task or schedule: 'changed'"
    )
    assert told(system)["code"] == ""

    audit = json.loads(system.once("audit", "--json", env={"entries": code}))
    assert audit["balances"]
    assert {each["entry"]: each["verdict"] for each in audit["entries"]} == dict.fromkeys(entries, "balances")
    _, url = served(system, entries=code)
    assert {entry for name, entry in series(url) if name == "celery_once_beat_open_windows"} == set(entries)
    doctor = system.celery("once", "doctor", name="doctor", entries=code)
    doctor.wait(120)
    assert "note  code: this process's code isn't what the beats run" in doctor.log
    assert "entry changed" not in doctor.log


def test_an_entry_that_cant_be_read(system: System) -> None:
    """What stands in the store in place of an entry's definition is nothing, and the code counts."""
    system.check_law = False
    system.entries = {"tick": RARE, "well": RARE}
    system.beat()
    wait_until(lambda: system.store.account("tick") and system.store.account("well"), "both are loaded", 60)
    account = system.account("tick")
    with system.client() as client:
        key = system.store.keys.of_load("tick")["entries"]
        for text in (
            "[" * 100_000,
            '{"task": 5}',
            "\x1b[2J",
            '{"task": "x", "schedule": {"type": "crontab"}, "lease": 1}',
        ):
            client.hset(key, "tick", f"{account.fingerprint} {text}")
            entries = by_name(told(system))
            assert entries["tick"]["kind"] == entries["well"]["kind"] == "scheduled"
            assert "\x1b" not in json.dumps(entries)
        client.delete(key)
        client.set(key, "foreign", ex=60)
        assert by_name(told(system)).keys() == {"tick", "well"}
        system.beat("second").wait_ready()
        wait_until(lambda: len(system.account("tick").loaders) == 2, "a beat loads it all the same", 60)
        client.delete(key)


def test_a_beat_that_may_not_look_for_what_is_gone(start_redis: Callable[..., RedisServer]) -> None:
    """What is told for people stops no load: not where the server refuses a key that a script doesn't declare."""
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "beat", "on", ">secret", "~*", "+@all", "-exists")
    store = Store(Settings(redis_url=server.url().replace("redis://", "redis://beat:secret@")))
    limits = EntryPolicy()
    for beat in ("host:1:a", "host:2:b"):  # the second one finds the entry there, and looks
        request = LoadRequest("tick", beat, "a-mark", 3600.0, limits, defined='{"task":"proj.work","lease":1}')
        assert all(isinstance(reply, Loaded) for reply in store.load_many([request]))
    store.close()


def test_while_a_beat_loads_the_others_are_believed(redis_url: str, store: Store) -> None:
    """An entry that has left the schedule isn't shown as unclaimed; nor is one that the beat is yet to load."""
    app = Celery("readers", broker=redis_url, set_as_current=False)
    app.conf.beat_schedule = {"kept": {"task": "proj.work", "schedule": 60.0}}
    schedule = load_schedule(app, store.settings)
    (kept,) = schedule.entries
    limits = EntryPolicy()
    long_ago = datetime.now(timezone.utc) - timedelta(hours=1)

    def load(name: str, beat: str) -> None:
        defined = schedule.entries.summary(kept)
        request = LoadRequest(name, beat, kept.fingerprint, 3600.0, limits, known=long_ago, defined=defined)
        assert all(isinstance(reply, Loaded) for reply in store.load_many([request]))

    load("gone", "host:0:dead")
    load("kept", "host:1:ready")

    def shown(**unloaded: int) -> dict[str, tuple[str, ...]]:
        for beat, number in unloaded.items():
            report = BeatReport(0.0, 0.0, 1, 0, "0.1.0", unloaded=number)
            store.overdue(f"host:{beat}", datetime.now(timezone.utc), 0, report=report)
        entries = make_report(take_snapshot(Lookup(store), schedule), schedule).entries
        return {entry.entry: entry.reasons for entry in entries}

    assert shown(**{"2:loads": 1}).get("gone") in (None, ()), "no beat has said what it has"
    assert shown(**{"1:ready": 0, "2:loads": 1}) == {"kept": ("unclaimed",)}
    report = BeatReport(0.0, 0.0, 1, 0, "0.1.0", left_out={"typo": "unknown key 'grce'"})
    store.overdue("host:3:newer", datetime.now(timezone.utc), 0, report=report)
    assert shown(**{"2:loads": 0})["typo"] == ("left out",), "also where this process's code has no such entry"


def test_how_many_messages_a_queue_has(redis_url: str) -> None:
    """Also of a queue that was purged: over Redis it isn't there any more."""
    with Celery("readers", broker=redis_url, set_as_current=False) as app:
        app.conf.once_beat_redis_url = redis_url
        project = Project(app)
        assert project.messages("celery") == 0
        app.send_task("proj.work")
        assert project.messages("celery") == 1


BEGINS = "worker celery@a begins nothing, and has {} reserved, one for 1 min; it executes {}"
#: By who has the message reserved, and how the worker stands: what is said of all entries, and of this one.
HANGS = {
    "its pool executes nothing": (
        "celery@a:0:71",
        {"celery@a": 1},
        BEGINS.format("1 window", "nothing"),
        "reserved by celery@a, which executes nothing",
    ),
    "nothing but what died": (
        "celery@a:1:71",
        {"celery@a": 1, "died": "celery@a:1:1"},
        BEGINS.format("2 windows", "1 task, and none renews a lease"),
        "reserved by celery@a, which executes 1 task, and none renews a lease",
    ),
    "something else, and what it has died elsewhere": (
        "celery@a:1:71",
        {"celery@a": 1, "died": "celery@b:1:1"},
        "",
        "reserved by celery@a, which executes 1 task, and none renews a lease",
    ),
    "it is busy": (
        "celery@a:2:71",
        {"celery@a": 1},
        "",
        "reserved by celery@a, which executes 2 tasks, and none renews a lease",
    ),
    "a rate limit": ("celery@a:-:71", {"celery@a": 1}, "", "reserved by celery@a, which holds it back by a rate limit"),
    "it has just got it": ("celery@a:0:5", {"celery@a": 1}, "", "reserved by celery@a, which executes nothing"),
    "it is silent": (
        "celery@a:2:71",
        {"celery@a": 40, "celery@b": 1},
        "worker celery@a hasn't reported since …, and didn't shut down: it has 1 window reserved",
        "reserved by celery@a, which executes 2 tasks, and none renews a lease",
    ),
    "it is silent and alone": (
        "",
        {"celery@a": 40},
        "worker celery@a hasn't reported since …, and didn't shut down: no other worker consumes mails",
        "no worker consumes the queue 'mails': celery@a did, and has stopped reporting",
    ),
    "it is silent, and another one is there": (
        "",
        {"celery@a": 40, "celery@b": 1},
        "",
        "the queue 'mails' has 1 worker, busy with 0 windows",
    ),
}


@pytest.mark.parametrize("how", HANGS)
def test_a_worker_that_hangs(redis_url: str, how: str) -> None:
    """It has windows, or is alone in its queue: that is said first, and with each window whose message it has."""
    holder, workers, hangs, waits = HANGS[how]
    app, settings = Celery("readers", broker=redis_url, set_as_current=False), Settings(redis_url=redis_url)
    app.conf.beat_schedule = {name: {"task": "proj.work", "schedule": 60.0} for name in ("dead", "tick")}
    schedule, store = load_schedule(app, settings), Store(settings)
    for entry in schedule.entries:
        entry.tracked = True
    filled.load(store, list(schedule.entries), timedelta(minutes=2))
    dead, tick = filled.claim(store, list(schedule.entries))
    raw = redis.Redis.from_url(redis_url)
    if "died" in workers:
        assert isinstance(store.begin(dead, workers["died"], 30.0), Begun)
        filled.backdate(raw, store, dead, timedelta(seconds=70), timedelta(seconds=-1))
        raw.delete(store.keys.of_window(dead, format_instant(dead.start))["run"])
        (taken,) = store.take_many(filled.BEAT, [(dead, schedule.entries.get("dead").fingerprint)])
        store.confirm_many([Confirmation(dead, taken.revision, Published.SENT, 600.0, "mails")])
        receive_many(store, [(dead, 0, 30.0, holder)])
    store.confirm_many([Confirmation(tick, 1, Published.SENT, 600.0, "mails")])
    if holder:
        receive_many(store, [(tick, 0, 30.0, holder)])
    filled.backdate(raw, store, tick, timedelta(seconds=70), timedelta(seconds=60))
    for worker, ago in {name: ago for name, ago in workers.items() if name != "died"}.items():
        store.consume(worker, "broker", ["mails"])
        raw.zincrby(store.keys.workers, -1000 * ago, f"{worker} broker mails")
    filled.beat_lives(store)
    report = make_report(take_snapshot(Lookup(store), schedule), schedule)
    told = [re.sub(r"since 2\S+Z", "since …", each.words) for each in report.troubles]
    assert told == ([hangs] if hangs else [])
    (entry,) = [each for each in report.entries if each.entry == "tick"]
    assert f"1 published, and begun by no worker for 1 min; {waits}" in entry.attention
    store.close()
    raw.close()


def test_a_beat_with_old_code(redis_url: str, store: Store, raw: redis.Redis) -> None:
    """It lives, and another beat loaded another definition: that is said once a deploy should be over."""
    app = Celery("readers", broker=redis_url, set_as_current=False)
    filled.beat_lives(store, filled.BEAT, "host-b:1:new")

    def reasons() -> tuple[tuple[str, ...], ...]:
        (entry,) = make_report(take_snapshot(Lookup(store), schedule), schedule).entries
        return entry.reasons, entry.attention

    for seconds, beat in ((7200.0, filled.BEAT), (3600.0, "host-b:1:new")):
        app.conf.beat_schedule = {"tick": {"task": "proj.work", "schedule": seconds}}
        schedule = load_schedule(app, store.settings)
        (entry,) = schedule.entries
        store.load_many([LoadRequest("tick", beat, entry.fingerprint, 30 * 86400.0, EntryPolicy())])
        assert reasons() == ((), ())
    raw.hset(store.entry_key("tick"), "since", format_instant(datetime.now(timezone.utc) - timedelta(seconds=20)))
    words = f"beat {filled.BEAT} has loaded another definition of it"
    assert reasons() == (("loaded otherwise",), (words,))
    store.leave(filled.BEAT)
    assert reasons() == ((), ())


def test_when_a_one_off_comes_next(redis_url: str, store: Store) -> None:
    """At its start, as long as that lies ahead; and never again once its window was claimed."""
    app = Celery("readers", broker=redis_url, set_as_current=False)
    weekly = schedule_of(timedelta(days=7))
    weekly.one_off = True  # as a row of django-celery-beat's has it
    app.conf.beat_schedule = {"once": {"task": "proj.work", "schedule": weekly}}
    schedule = load_schedule(app, store.settings)
    filled.load(store, list(schedule.entries), timedelta(minutes=3))

    def next_start() -> datetime | None:
        (entry,) = make_report(take_snapshot(Lookup(store), schedule), schedule).entries
        return entry.next

    (entry,) = schedule.entries
    start = entry.after(datetime.now(timezone.utc))
    assert next_start() == start
    store.claim_many("beat", [ClaimRequest(WindowKey("once", start), entry.cursor, entry.fingerprint)])
    assert next_start() is None


def test_a_one_off_that_failed_is_seen(redis_url: str, store: Store, raw: redis.Redis) -> None:
    """It is disabled with its outcome, and needs attention all the same; a row that somebody disabled doesn't."""
    app = Celery("readers", broker=redis_url, set_as_current=False)
    app.conf.beat_schedule = {"once": {"task": "proj.work", "schedule": 60.0}}
    schedule = load_schedule(app, store.settings)
    filled.fill(store, schedule, 1, timedelta(minutes=3), ["failed"])
    app.conf.beat_schedule = {}
    disabled = replace(load_schedule(app, store.settings), disabled=frozenset({"once"}))

    def reasons() -> tuple[str, ...]:
        (entry,) = make_report(take_snapshot(Lookup(store), disabled), disabled).entries
        return (entry.kind, *entry.reasons)

    assert reasons() == ("disabled",)
    raw.hset(store.entry_key("once"), "spent", "as spent.lua has it")
    assert reasons() == ("disabled", "failed")
