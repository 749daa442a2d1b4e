"""What status, audit, doctor, metrics and board show is what the beats run, whatever code the process has that asks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import filled
import pytest
import redis
from celery import Celery
from celery.schedules import schedule as schedule_of
from processes import wait_until
from system import System

from celery_once_beat import OnceTask
from celery_once_beat.beat import BeatEntry
from celery_once_beat.beat.schedule import LoadedSchedule, load_schedule
from celery_once_beat.cli.context import Project
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.status import Report, make_report, take_snapshot
from celery_once_beat.store import BeatReport, Begun, ClaimRequest, Confirmation, Loaded, LoadRequest, Published, Store
from celery_once_beat.windows import WindowKey, format_instant

WORK = "apps.once_app.work"
RARE = {"task": WORK, "every": 3600.0}
HOUR = timedelta(hours=1)


def status(system: System, entries: dict[str, Any]) -> dict[str, Any]:
    """What it says to a process that has this code, and its entries by name."""
    report = json.loads(system.once("status", "--json", env={"entries": entries}))
    return {**report, "entries": {entry["entry"]: entry for entry in report["entries"]}}


@pytest.mark.long
def test_readers_show_what_the_beats_run(system: System) -> None:
    """Entries and definitions are the beats'; by which this process's code differs is one line, and no alarm."""
    system.check_law = False
    changed, there = {"task": WORK, "every": 1.0}, {"task": WORK, "cron": "30 2 29 2 *"}
    system.entries = {"both": RARE, "there": there, "changed": changed}
    system.beat().wait_ready()
    code = {"both": RARE, "here": RARE, "changed": {"task": WORK, "every": 7200.0}}
    wait_until(lambda: system.store.account("changed"), "all are loaded", 60)
    wait_until(lambda: not status(system, code)["beats"][0]["unloaded"], "the beat says so", 60)
    system.store.set_paused("changed", paused=True)

    report = status(system, code)
    entries = report["entries"]
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
    assert status(system, system.entries)["code"] == ""
    audit = json.loads(system.once("audit", "--json", env={"entries": code}))
    assert {each["entry"]: each["verdict"] for each in audit["entries"]} == dict.fromkeys(entries, "balances")
    metrics = system.once("metrics", env={"entries": code})
    assert {*re.findall(r'^celery_once_beat_open_windows{entry="(\w+)"}', metrics, re.MULTILINE)} == {*entries}
    doctor = system.celery("once", "doctor", name="doctor", entries=code)
    doctor.wait(120)
    assert "note  code: this process's code isn't what the beats run" in doctor.log
    assert "entry changed" not in doctor.log


class Reader:
    """A process that looks, what its code has, and the store that it looks at."""

    def __init__(self, url: str, store: Store) -> None:
        self.app = Celery("readers", broker=url, set_as_current=False, task_cls=OnceTask)
        self.app.task(filled.fill, name="proj.work", shared=False)
        self.store = store
        self.disabled: frozenset[str] = frozenset()

    @property
    def schedule(self) -> LoadedSchedule:
        return replace(load_schedule(self.app, self.store.settings), disabled=self.disabled)

    def has(self, **schedules: Any) -> list[BeatEntry]:
        """Have entries of these schedules in the code; returns them."""
        entries = {name: {"task": "proj.work", "schedule": each} for name, each in schedules.items()}
        self.app.conf.beat_schedule = entries
        return list(self.schedule.entries)

    def load(self, name: str, beat: str, entry: BeatEntry, ago: timedelta = HOUR) -> None:
        """Let a beat have loaded an entry of that name, first heard of so long ago."""
        known, defined = datetime.now(timezone.utc) - ago, self.schedule.entries.summary(entry)
        request = LoadRequest(name, beat, entry.fingerprint, 30 * 86400.0, EntryPolicy(), known=known, defined=defined)
        assert all(isinstance(reply, Loaded) for reply in self.store.load_many([request]))

    def says(self, beat: str, **more: Any) -> None:
        """Let a beat say how it is."""
        report = BeatReport(0.0, 0.0, 1, 0, "0.1.0", **more)
        self.store.overdue(beat, datetime.now(timezone.utc), 0, report=report)

    def report(self) -> Report:
        return make_report(take_snapshot(Lookup(self.store), self.schedule), self.schedule)

    def reasons(self) -> dict[str, tuple[str, ...]]:
        return {entry.entry: entry.reasons for entry in self.report().entries}


@pytest.fixture
def reader(redis_url: str, store: Store) -> Reader:
    return Reader(redis_url, store)


def test_while_a_beat_loads_the_others_are_believed(reader: Reader) -> None:
    """An entry that has left the schedule isn't shown as unclaimed; nor is one that the beat is yet to load."""
    (kept,) = reader.has(kept=60.0)
    reader.load("gone", "host:0:dead", kept)
    reader.load("kept", "host:1:ready", kept)
    reader.says("host:2:loads", unloaded=1)
    assert reader.reasons().get("gone") in (None, ()), "no beat has said what it has"
    reader.says("host:1:ready", unloaded=0)
    assert reader.reasons() == {"kept": ("unclaimed",)}
    reader.says("host:3:newer", left_out={"typo": "unknown key 'grce'"})
    assert reader.reasons()["typo"] == ("left out",), "also where this process's code has no such entry"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"task": 5}', "\x1b[2J"], ids=["deep", "foreign", "no JSON"])
def test_a_definition_that_cant_be_read(reader: Reader, raw: redis.Redis, text: str) -> None:
    """What stands in the store in place of an entry's definition is nothing, and the code counts."""
    (entry,) = reader.has(tick=60.0)
    reader.load("tick", "host:1:ready", entry)
    raw.hset(reader.store.keys.for_entry("tick")["entries"], "tick", f"{entry.fingerprint} {text}")
    reader.says("host:1:ready")
    (shown,) = reader.report().entries
    assert (shown.entry, shown.kind, shown.schedule) == ("tick", "scheduled", "every 1 min")


def test_a_beat_with_old_code(reader: Reader, raw: redis.Redis) -> None:
    """It lives, and another beat loaded another definition: that is said once a deploy should be over."""
    filled.beat_lives(reader.store, filled.BEAT, "host-b:1:new")
    for seconds, beat in ((7200.0, filled.BEAT), (3600.0, "host-b:1:new")):
        reader.load("tick", beat, *reader.has(tick=seconds), ago=timedelta(0))
        assert reader.reasons() == {"tick": ()}
    raw.hset(
        reader.store.entry_key("tick"), "since", format_instant(datetime.now(timezone.utc) - timedelta(seconds=20))
    )
    assert reader.reasons() == {"tick": ("loaded otherwise",)}
    assert reader.report().entries[0].attention == (f"beat {filled.BEAT} has loaded another definition of it",)
    reader.store.leave(filled.BEAT)
    assert reader.reasons() == {"tick": ()}


def test_when_a_one_off_comes_next(reader: Reader) -> None:
    """At its start, as long as that lies ahead; and never again once its window was claimed."""
    weekly = schedule_of(timedelta(days=7))
    weekly.one_off = True  # as a row of django-celery-beat's has it
    (entry,) = reader.has(once=weekly)
    filled.load(reader.store, [entry], timedelta(minutes=3))
    start = entry.after(datetime.now(timezone.utc))
    assert reader.report().entries[0].next == start
    reader.store.claim_many("beat", [ClaimRequest(WindowKey("once", start), entry.cursor, entry.fingerprint)])
    assert reader.report().entries[0].next is None


def test_a_one_off_that_failed_is_seen(reader: Reader, raw: redis.Redis) -> None:
    """It is disabled with its outcome, and needs attention all the same; a row that somebody disabled doesn't."""
    reader.has(once=60.0)
    filled.fill(reader.store, reader.schedule, 1, timedelta(minutes=3), ["failed"])
    reader.has()
    reader.disabled = frozenset({"once"})
    assert reader.reasons() == {"once": ()}
    raw.hset(reader.store.entry_key("once"), "spent", "as spent.lua has it")
    assert reader.reasons() == {"once": ("failed",)}
    assert reader.report().entries[0].kind == "disabled"


def test_how_many_messages_a_queue_has(reader: Reader, redis_url: str) -> None:
    """Also of a queue that was purged: over Redis it isn't there any more."""
    reader.app.conf.once_beat_redis_url = redis_url
    project = Project(reader.app)
    assert project.messages("celery") == 0
    with reader.app:
        reader.app.send_task("proj.work")
        assert project.messages("celery") == 1


ALONE = {"celery@a": 40}
BOTH = {**ALONE, "celery@b": 1}
A = {"celery@a": 1}
BEGINS = "worker celery@a begins nothing, and has {} reserved, one for 1 min; it executes {}"
SILENT = "worker celery@a hasn't reported since …, and didn't shut down: "
RESERVED = "reserved by celery@a, which "
TASKS = "executes {}, and none renews a lease".format
#: By who has the message reserved, how long ago workers spoke, and who died with another window: what is said of all
#: entries, and of this one.
HANGS = {
    "its pool executes nothing": ("a:0:71", A, "", BEGINS.format("1 window", "nothing"), RESERVED + "executes nothing"),
    "nothing but what died": (
        *("a:1:71", A, "a", BEGINS.format("2 windows", TASKS("1 task").removeprefix("executes "))),
        RESERVED + TASKS("1 task"),
    ),
    "something else, and what it has died elsewhere": ("a:1:71", A, "b", "", RESERVED + TASKS("1 task")),
    "it is busy": ("a:2:71", A, "", "", RESERVED + TASKS("2 tasks")),
    "a rate limit": ("a:-:71", A, "", "", RESERVED + "holds it back by a rate limit"),
    "it has just got it": ("a:0:5", A, "", "", RESERVED + "executes nothing"),
    "it is silent": ("a:2:71", BOTH, "", SILENT + "it has 1 window reserved", RESERVED + TASKS("2 tasks")),
    "it is silent and alone": (
        *("", ALONE, "", SILENT + "no other worker consumes mails"),
        "no worker consumes the queue 'mails': celery@a did, and has stopped reporting",
    ),
    "silent, and another is there": ("", BOTH, "", "", "the queue 'mails' has 1 worker, busy with 0 windows"),
}


@pytest.mark.parametrize(("holder", "workers", "died", "hangs", "waits"), HANGS.values(), ids=HANGS)
def test_a_worker_that_hangs(
    reader: Reader, redis_url: str, holder: str, workers: dict[str, int], died: str, hangs: str, waits: str
) -> None:
    """It has windows, or is alone in its queue: that is said first, and with each window whose message it has."""
    store, entries, raw = reader.store, reader.has(dead=60.0, tick=60.0), redis.Redis.from_url(redis_url)
    filled.load(store, entries, timedelta(minutes=2))
    dead, tick = filled.claim(store, entries)
    if died:
        assert isinstance(store.begin(dead, f"celery@{died}:1:1", 30.0), Begun)
        filled.backdate(raw, store, dead, timedelta(seconds=70), timedelta(seconds=-1))
        raw.delete(store.keys.of_window(dead, format_instant(dead.start))["run"])
        (taken,) = store.take_many(filled.BEAT, [(dead, entries[0].fingerprint)])
        store.confirm_many([Confirmation(dead, taken.revision, Published.SENT, 600.0, "mails")])
        receive_many(store, [(dead, 0, 30.0, f"celery@{holder}")])
    store.confirm_many([Confirmation(tick, 1, Published.SENT, 600.0, "mails")])
    if holder:
        receive_many(store, [(tick, 0, 30.0, f"celery@{holder}")])
    filled.backdate(raw, store, tick, timedelta(seconds=70), timedelta(seconds=60))
    for worker, ago in workers.items():
        store.consume(worker, "broker", ["mails"])
        raw.zincrby(store.keys.workers, -1000 * ago, f"{worker} broker mails")
    raw.close()
    filled.beat_lives(store)
    report = reader.report()
    told = [re.sub(r"since 2\S+Z", "since …", each.words) for each in report.troubles]
    assert told == ([hangs] if hangs else [])
    (entry,) = [each for each in report.entries if each.entry == "tick"]
    assert f"1 published, and begun by no worker for 1 min; {waits}" in entry.attention
