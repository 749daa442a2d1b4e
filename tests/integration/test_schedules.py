"""Schedules that people set while everything runs: the client, and beats that put in force what it says."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from processes import wait_until
from servers import RedisServer
from system import System

from celery_once_beat import AsyncSchedules, Schedule, Schedules, background, errors
from celery_once_beat.schedules import RRule, cron, every, excluding, union
from celery_once_beat.store import BeatReport
from celery_once_beat.windows import format_instant, parse_instant

WORK = "apps.once_app.work"
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def schedules(redis_url: str, close_later: Callable[[Any], Any]) -> Schedules:
    return close_later(Schedules(url=redis_url))


# ------------------------------------------------------------------------------------------------ the client


NAME = "tenant-42/report"
REPORT = {
    "task": "proj.report", "args": (42,), "options": {"queue": "reports"}, "once": {"catch_up": "all"},
    "timezone": "Europe/Berlin",
}  # fmt: skip


def test_a_schedule_is_set_changed_paused_and_deleted(schedules: Schedules) -> None:
    """As the page says; each answer says what there is from then on, and what is read can be set."""
    one = schedules.set(NAME, **REPORT, schedule=crontab(hour=6), by="anna", note="their trial ends in May")
    assert isinstance(one, Schedule)
    assert (one.name, one.task, one.args, one.version) == (NAME, "proj.report", (42,), 1)
    assert (one.changed_by, one.note, one.paused) == ("anna", "their trial ends in May", False)
    assert one.schedule.tz == BERLIN
    assert schedules.get(NAME) == schedules.set(**one.as_arguments()) == one
    two = schedules.set(NAME, task="proj.report", schedule=60, if_version=one.version)
    for name, version, current in ((NAME, 1, two), ("another", 2, None)):
        with pytest.raises(errors.VersionConflictError, match=f"expected version {version}, ") as conflict:
            schedules.set(name, task="proj.report", schedule=30, if_version=version)
        assert conflict.value.current == current
    known = schedules.pause(NAME, by="bob", note="too loud")
    assert known == schedules.get(NAME)
    assert (known.paused, known.changed_by, known.version) == (True, "bob", 3)
    assert schedules.pause(NAME, by="carl") == known, "it is paused already"
    resumed = schedules.resume(NAME)
    assert (resumed.paused, resumed.version) == (False, 4)
    with pytest.raises(errors.VersionConflictError):
        schedules.delete(NAME, if_version=3)
    assert schedules.delete(NAME, by="anna", if_version=4)
    assert schedules.get(NAME) is None
    assert not schedules.delete(NAME)
    changes = schedules.changes(NAME)
    assert [(change.what, change.version) for change in changes] == [
        ("delete", 5), ("resume", 4), ("pause", 3), ("set", 2), ("set", 1),
    ]  # fmt: skip
    assert [change.definition and change.definition.args for change in changes] == [None, None, None, (), (42,)]
    assert schedules.set(**one.as_arguments()).text() == one.text()


AT_SIX = crontab(hour=6)
BOTH = union(cron("0 6 * * *"), cron("0 7 * * *", tz="UTC"), tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("when", "fields", "tz", "differs"),
    [
        (AT_SIX, {"schedule": crontab(hour=7)}, "Europe/Berlin", {"hour": 7}),
        (AT_SIX, {"timezone": "Asia/Tokyo"}, "Asia/Tokyo", {}),
        (cron("0 6 * * *"), {"schedule": crontab(hour=7)}, "Europe/Berlin", {"hour": 7}),
        (AT_SIX, {"schedule": cron("0 7 * * *", tz="UTC")}, "UTC", {"line": "0 7 * * *"}),
        (AT_SIX, {"args": (43,), "by": "bob"}, "Europe/Berlin", {}),
        (AT_SIX, {"once": {}}, "Europe/Berlin", {}),
        (BOTH, {"timezone": "Asia/Tokyo"}, "Asia/Tokyo", {}),
    ],
)
def test_a_change_of_one_field_leaves_the_others(schedules, when, fields, tz: str, differs: dict[str, Any]) -> None:
    """Its time zone too, which a new schedule that names none takes over."""
    one = schedules.set("a", **REPORT, schedule=when, paused=True, metadata={"form": [1]})
    two = schedules.change("a", **fields)
    assert two == schedules.get("a")
    assert (two.version, two.paused, two.metadata) == (2, True, {"form": [1]})
    before, after = one.as_json(), two.as_json()
    for field in ("task", "args", "options", "once"):
        assert after.get(field) == ({"args": [43]}.get(field) if field in fields else before.get(field))
    assert after["schedule"].items() >= {"tz": tz, **differs}.items()
    if when is BOTH:
        assert [part["tz"] for part in after["schedule"]["of"]] == ["Asia/Tokyo", "UTC"], "what named its own keeps it"


def test_changes_that_meet_are_both_made(schedules: Schedules, redis_url: str) -> None:
    """Each is repeated on what another has made meanwhile; one that is deleted meanwhile isn't made again."""
    schedules.set("a", task="t", schedule=60)

    def change(number: int) -> None:
        with closing(Schedules(url=redis_url)) as client:
            client.change("a", **({"args": (number,)} if number else {"schedule": 30}))

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(change, range(8))] == [None] * 8
    found = schedules.get("a")
    assert (found.version, found.as_json()["schedule"]["seconds"]) == (9, 30)
    assert found.args != ()
    with pytest.raises(errors.UnknownScheduleError):
        schedules.change("nobody", args=(1,))


def test_metadata_are_the_callers_own(schedules: Schedules, raw: redis.Redis) -> None:
    """They make no version, stay until they are given anew, and are searched."""
    one = schedules.set("t/a", task="t", schedule=60, metadata={"tenant": "42", "form": {"days": [1, 2]}}, by="anna")
    two = schedules.set("t/a", task="t", schedule=60, metadata={"tenant": "43"}, by="bob")
    assert (two.version, two.changed_by, two.metadata) == (one.version, "anna", {"tenant": "43"})
    assert schedules.set("t/a", task="t", schedule=30).metadata == {"tenant": "43"}
    assert schedules.pause("t/a").metadata == {"tenant": "43"}
    assert [change.what for change in schedules.changes("t/a")] == ["pause", "set", "set"]
    schedules.set("t/b", task="t", schedule=60, metadata={"tenant": "42"})
    schedules.set("u/c", task="t", schedule=60, metadata={"tenant": "42"})
    schedules.set("t/d", task="t", schedule=60)
    assert [each.name for each in schedules.list("t/", where={"metadata.tenant": "42"})] == ["t/b"]
    assert "tenant" not in raw.hget(schedules._store.keys.of_entry("def", "t/a"), "text")
    raw.hset(schedules._store.keys.of_entry("def", "t/b"), "metadata", "[]")
    with pytest.raises(errors.StoreDataError, match=r"'t/b', metadata: found \[\], expected an object"):
        schedules.get("t/b")
    assert schedules.set("t/b", task="t", schedule=60, metadata={}).metadata == {}
    schedules.delete("t/a")
    assert schedules.set("t/a", task="t", schedule=60).metadata == {}


def test_many_are_set_and_deleted_at_once(schedules: Schedules) -> None:
    """All that is wrong is said before anything is written; set again nothing changes."""
    wanted = [{"name": f"t/{number}", "task": "t", "schedule": 60, "args": (number,)} for number in range(1200)]
    made = schedules.set_many(wanted, by="anna")
    assert [each.args for each in made] == [(number,) for number in range(1200)]
    assert {(each.version, each.changed_by) for each in made} == {(1, "anna")}
    assert sorted(schedules.set_many(wanted), key=lambda each: each.name) == [*schedules.list()]
    rows = {"schedule": -1}, {"args": ("x" * 99_999,)}, {"timezone": "Mars"}, {"paused": "no"}
    refused = [({**wanted[0], **wrong}, "^schedule 't/0'") for wrong in rows]
    refused += [(wrong, "set_many") for wrong in ({"name": "x"}, {**wanted[0], "if_version": 1}, 5)]
    for wrong, said in refused:
        with pytest.raises(errors.SettingError, match=said):
            schedules.set_many([{"name": "new", "task": "t", "schedule": 60}, wrong])
    assert schedules.get("new") is None
    schedules.set("u", task="t", schedule=60)
    with pytest.raises(errors.SettingError, match="prefix"):
        schedules.delete_many("")
    assert schedules.delete_many("t/1", by="bob") == 311
    assert schedules.changes("t/1")[0].by == "bob"
    assert schedules.delete_many("t/") == 889
    assert [each.name for each in schedules.list()] == ["u"]


def test_one_that_cant_be_read_is_named_alone(schedules: Schedules, raw: redis.Redis) -> None:
    """The others are listed, and it can be set again or deleted."""
    for name in ("a", "b", "c", "d"):
        schedules.set(name, task="t", schedule=60)
    for name, text in (("b", '{"v":1}'), ("c", '{"v":2}')):
        raw.hset(schedules._store.keys.of_entry("def", name), "text", text)
    wrong: list[errors.OnceError] = []
    assert [each.name for each in schedules.list(wrong=wrong.append)] == ["a", "d"]
    assert [type(error) for error in wrong] == [errors.StoreDataError, errors.NewerVersionError]
    assert "'b'" in str(wrong[0])
    with pytest.raises(errors.StoreDataError, match="'b'"):
        schedules.get("b")
    assert schedules.pause("b") is None
    assert schedules.resume("b") is None
    assert schedules.set("b", task="t", schedule=60).version == 4
    assert schedules.delete("c")


def test_what_an_app_knows_is_asked(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A static entry's name is refused; an unknown task is named once, a task's name is taken from it."""
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {"nightly": {"task": "proj.report", "schedule": 60}}

    @app.task(name="proj.known", shared=False)  # not of the apps of other tests
    def known() -> None: ...

    with closing(Schedules(app)) as schedules:
        with pytest.raises(errors.SettingError, match="beat_schedule"):
            schedules.set("nightly", task="proj.known", schedule=60)
        one = schedules.set("a", task=known, schedule=crontab(hour=6), options={"expires": datetime(2031, 1, 1)})
        assert (one.task, one.schedule.tz) == ("proj.known", BERLIN)
        for name in ("b", "c"):
            schedules.set(name, task="proj.later", schedule=60)
        assert caplog.text.count("doesn't know the task 'proj.later'") == 1
        assert "proj.known" not in caplog.text


NOW = datetime.now(timezone.utc)
NAIVE = datetime(2031, 1, 1)
COSTLY = union(*(RRule("DAILY", "2020-01-01T00:00Z", bymonth=2, bymonthday=30, byminute=n) for n in range(50)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"task": print}, {"schedule": crontab(), "timezone": "Mars/Olympus"},
        {"schedule": NOW - timedelta(days=1)}, {"task": Celery(set_as_current=False).signature("t", args=(42,))},
        {"paused": "no"}, {"if_version": "1"}, {"if_version": True}, {"if_version": -1}, {"by": "x" * 1000},
        {"once": {"catchup": "all"}}, {"metadata": "tenant"}, {"metadata": {"form": "x" * 4096}},
        {"options": {"args": [1]}}, {"options": {"task_id": "x"}}, {"options": {"prioritty": 1}},
        {"options": {"serializer": ["json"]}}, {"metadata": {"at": NAIVE}}, {"metadata": {1: "a"}},
        {"options": {"expires": NAIVE}},
        {"schedule": crontab(hour=6), "timezone": "Europe/Berlin", "once": {"tz": "Asia/Tokyo"}},
        {"schedule": cron("0 2 * * *", tz="UTC"), "timezone": "Europe/Berlin"}, {"schedule": COSTLY},
        lambda s: s.next("there", -1), lambda s: s.next("there", 1, "today"), lambda s: s.history("there", -1),
        lambda s: s.backfill("there", None, NOW), lambda s: s.run("there", NOW + timedelta(days=1)),
        lambda s: s.delete("there", if_version="1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_before_anything_is_written(schedules: Schedules, raw: redis.Redis, wrong) -> None:
    """What a schedule is set to, and numbers and times that are asked for: at the caller; the store is as it was."""
    schedules.set("there", task="t", schedule=60)
    before = {key: raw.dump(key) for key in raw.scan_iter("once:*def*")}
    with pytest.raises(errors.SettingError) as found:
        wrong(schedules) if callable(wrong) else schedules.set(**{"name": "a", "task": "t", "schedule": 60, **wrong})
    assert "\n" not in str(found.value)
    assert {key: raw.dump(key) for key in raw.scan_iter("once:*def*")} == before


def test_where_schedules_are_kept_is_said_once() -> None:
    """By an app and its settings, or by a URL."""
    with Celery("tests", set_as_current=False) as app:
        for wrong in ({}, {"app": "redis://"}, {"app": app, "url": "redis://"}, {"app": app, "key_prefix": "x:"}):
            with pytest.raises(errors.SettingError, match=r"^Schedules: "):
                Schedules(**wrong)


def test_a_limit_that_no_beat_has_is_refused(schedules: Schedules) -> None:
    """Where beats live they say which there are; where none does, nobody knows here."""
    limited = {"task": "t", "schedule": 60, "once": {"limit": "reprts"}}
    assert schedules.set("a", **limited).version == 1
    report = BeatReport(0.0, 0.0, 0, 0, "0.1.0", limits={"reports": "3"})
    schedules._store.overdue("host:1:beat", datetime.now(timezone.utc), 0, report=report)
    for wrong in (lambda: schedules.set("b", **limited), lambda: schedules.set_many([{"name": "b", **limited}])):
        with pytest.raises(errors.SettingError, match=r"has 'reports' \(did you mean 'reports'\?\)"):
            wrong()
    assert schedules.set("b", **{**limited, "once": {"limit": "reports"}}).version == 1


def test_what_isnt_there_is_said(schedules: Schedules) -> None:
    """As one of our errors, which is a LookupError too."""
    assert schedules.get("nobody") is None
    assert [*schedules.changes("nobody")] == []
    assert schedules.history("nobody") == []
    for ask in (schedules.pause, schedules.resume, schedules.next, schedules.run, schedules.status):
        with pytest.raises(errors.UnknownScheduleError):
            ask("nobody")
    assert issubclass(errors.UnknownScheduleError, LookupError)
    schedules.set("young", task="t", schedule=60)
    assert schedules.status("young").attention == ("no beat has loaded it yet",)
    assert not issubclass(errors.NotLoadedError, errors.UnknownScheduleError)
    assert schedules.status_many(["nobody", "young"]).keys() == {"young"}
    assert schedules.history_many(["nobody", "young"]) == {"nobody": [], "young": []}


def test_the_next_starts_are_the_definitions(schedules: Schedules) -> None:
    """No beat is asked, and naive times are in the client's time zone."""
    berlin: Any = {"timezone": "Europe/Berlin", "once": {"tz": "Europe/Berlin"}}  # one zone in two places is one
    schedules.set("a", task="t", schedule=crontab(minute=0, hour=6), **berlin)
    starts = schedules.next("a", 3, datetime(2026, 3, 28))
    assert [start.astimezone(BERLIN).isoformat() for start in starts] == [
        "2026-03-28T06:00:00+01:00",
        "2026-03-29T06:00:00+02:00",
        "2026-03-30T06:00:00+02:00",
    ]
    later = datetime.now(timezone.utc) + timedelta(days=1)
    schedules.set("once", task="t", schedule=later)
    assert schedules.next("once", 5) == [later]
    for each in schedules.list():
        assert each.next(3, starts[0]) == schedules.next(each.name, 3, starts[0])
    assert schedules.next("once", 5, later) == []


def test_a_value_counts_by_the_clock_of_its_server(start_redis: Callable[..., RedisServer]) -> None:
    """Whatever has returned it; one that wasn't read counts by this machine's."""
    server = start_redis(faketime=0)
    server.set_clock_offset(86_400)
    here = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=12)
    daily = {"task": "t", "schedule": timedelta(days=1), "once": {"anchor": here}}
    for method, given in (("set", daily), ("get", {}), ("pause", {}), ("resume", {})):
        with closing(Schedules(url=server.url())) as schedules:
            value = getattr(schedules, method)("a", **given)
        assert value.next() == [here + timedelta(days=1)]
        assert replace(value, clock_ahead=timedelta(0)).next() == [here]


def test_the_async_twin(redis_url: str) -> None:
    """Each method, awaited; a hundred at once."""

    async def use() -> None:
        schedules = AsyncSchedules(url=redis_url)
        made = await asyncio.gather(
            *(schedules.set(f"user-{number:03}", task="t", schedule=60, if_version=0) for number in range(100))
        )
        assert {each.version for each in made} == {1}
        assert [each.name async for each in schedules.list("user-09")] == [f"user-09{number}" for number in range(10)]
        with pytest.raises(errors.VersionConflictError):
            await schedules.set("user-000", task="t", schedule=30, if_version=0)
        await schedules.pause("user-000", by="anna")
        known = await schedules.get("user-000")
        assert known.paused
        assert (await schedules.changes("user-000"))[0].by == "anna"
        assert len(await schedules.next("user-000", 2)) == 2
        assert await schedules.delete("user-000")
        assert await schedules.names("user-00") == [f"user-00{number}" for number in range(1, 10)]
        await schedules.close()

    asyncio.run(use())


def test_an_async_client_of_a_redis_that_hangs(start_redis: Callable[..., RedisServer]) -> None:
    """All of many calls get the error after the same time, and what waited for a thread isn't sent later."""
    server = start_redis()
    schedules = AsyncSchedules(url=server.url(), timeout=1.0)

    async def use() -> None:
        assert await schedules.get("none") is None
        server.pause()
        calls = (schedules.set(f"late-{number}", task="t", schedule=60) for number in range(64))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, errors.StoreUnavailableError)
        assert [each async for each in schedules.list()]

    with pytest.raises(
        errors.StoreUnavailableError, match=r"no answer within 1 s; what was asked may have been carried out"
    ):
        asyncio.run(use())
    server.resume()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "once-awaited"], "all is asked", 60)
    assert len(list(schedules.sync.list())) <= background._MOST
    schedules.sync.close()


# ------------------------------------------------------------------------------------------------ beats


@pytest.fixture
def client(system: System, close_later: Callable[[Any], Any]) -> Schedules:
    """A client of the system's store; nothing is in the beats' own schedule."""
    system.entries = {}
    return close_later(Schedules(url=system.store_url))


def executed(system: System, entry: str) -> list[str]:
    """The windows whose body came to its end, in order."""
    return [event["start"] for event in system.ledger.read("finish", entry=entry)]


def wait_executed(system: System, entry: str, number: int) -> list[str]:
    wait_until(lambda: len(executed(system, entry)) >= number, f"{number} windows of {entry} executed", 60)
    return executed(system, entry)


def test_an_order_is_published_by_a_beat(system: System, client: Schedules) -> None:
    """Run and backfill need neither a broker nor an app, nor a beat that lives; outcomes are counted apart."""
    client.set("daily", task=WORK, schedule=timedelta(days=1))
    ordered = client.run("daily")
    assert ordered.task_id is not None
    system.worker().wait_ready()
    beat = system.beat().wait_ready()
    assert wait_executed(system, "daily", 1) == [format_instant(ordered.start)]
    before = ordered.start - timedelta(days=2)
    again = client.backfill("daily", before, ordered.start)
    assert [each.start for each in again] == [before, before + timedelta(days=1)]
    wait_executed(system, "daily", 3)
    wait_until(lambda: system.account("daily").apart.get("done") == 3, "their outcomes are recorded", 60)
    status = client.status("daily")
    assert status.backfilled == {"done": 3}
    assert status.next == client.next("daily")[0]
    assert [window.state for window in client.history("daily")] == ["done"] * 3
    assert "overdue" not in beat.log


@pytest.mark.parametrize("action", ["KILL", "STOP"])
@pytest.mark.parametrize("point", ["beat.change_read", "beat.change_in_force"])
@pytest.mark.long
def test_a_beat_between_a_change_and_its_force(system: System, client: Schedules, point: str, action: str) -> None:
    """It dies or stands still with what it has read in its hands, over the next change too: nothing runs by the old.

    Each window runs once with two beats; a change counts from its instant, a deletion ends it.
    """
    system.settings = {"once_beat_lease": 4.0}
    system.kill_point = f"{point}:{action}"
    beats, workers = system.pair()
    client.set("tick", task=WORK, schedule=0.5, args=(0.01,))
    fired = system.wait_fired()
    wait_executed(system, "tick", 3)
    changed = client.set("tick", task=WORK, schedule=0.7, args=(0.02,)).changed_at
    wait_executed(system, "tick", len(executed(system, "tick")) + 4)
    if action == "STOP":
        fired.resume()
        fired.wait_log("schedule 'tick' is read, version 2")
        wait_executed(system, "tick", len(executed(system, "tick")) + 4)
    client.delete("tick")
    deleted_at = client.changes("tick")[0].at
    wait_until(lambda: not system.account("tick").open, "every window has its outcome", 60)
    assert fired in beats
    assert all(proc.alive for proc in (*beats, *workers) if proc is not fired)
    ran = [(parse_instant(event["start"]), event["seconds"]) for event in system.ledger.read("finish", entry="tick")]
    assert max(Counter(start for start, _ in ran).values()) == 1
    for start, seconds in ran:
        assert start <= deleted_at
        assert seconds == (0.01 if start <= changed else 0.02)
    new = sorted(start for start, _ in ran if start > changed)
    assert {later - start for start, later in itertools.pairwise(new)} == {timedelta(seconds=0.7)}


def test_coming_starts_are_listed_as_far_as_there_are_some(schedules: Schedules) -> None:
    """Also of what leaves out many days, and of what leaves out everything."""
    utc = {"tz": "UTC"}
    schedules.set("a", task="t", schedule=excluding(cron("* * * * *", **utc), cron("* * 1-9 12 *", **utc)))
    tenth = datetime(2026, 12, 10, tzinfo=timezone.utc)
    assert schedules.next("a", 1, datetime(2026, 12, 1, tzinfo=timezone.utc)) == [tenth]
    last = tenth - timedelta(days=9, minutes=1)
    assert schedules.next("a", 2, last - timedelta(minutes=1)) == [last, tenth]
    schedules.set("b", task="t", schedule=excluding("1 s", every("1 s")))
    assert schedules.next("b", 3) == []


@pytest.mark.long
def test_a_deleted_ones_open_window_is_recovered(system: System, client: Schedules) -> None:
    """Its beat and its worker are killed, it is deleted, and a beat that never knew it publishes it again."""
    system.settings = {"once_beat_lease": 30.0}
    first = system.beat().wait_ready()
    client.set("tick", task=WORK, schedule=0.5)
    wait_until(system.waiting, "a window is published", 60)
    first.kill()
    system.worker(env={"kill_point": "worker.body:KILL", "settings": {"once_beat_lease": 1.0}}).wait_ready()
    start = system.killed_in()
    client.delete("tick")
    system.beat("another").wait_ready().wait_log(f"window {start} of 'tick' is overdue, to be published again")
    system.worker("worker2").wait_ready()
    wait_until(lambda: start in executed(system, "tick"), "it is executed", 60)
    wait_until(lambda: not system.account("tick").open, "every window has its outcome", 60)
