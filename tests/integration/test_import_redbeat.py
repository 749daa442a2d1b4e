"""``celery once schedules import redbeat``: what celery-redbeat itself has stored, read from a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import crontab, schedule
from click.testing import CliRunner, Result
from dateutil.rrule import MO, SU, TU, WE
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from celery_once_beat import Schedule, Schedules
from celery_once_beat.cli import once as once_group
from celery_once_beat.features.runtime.store import read_definitions
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import LoadRequest
from celery_once_beat.windows import next_start

Import = Callable[..., Result]
BERLIN = ZoneInfo("Europe/Berlin")
LOCK = "redbeat::lock"
HELD = "celery once schedules import redbeat"
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(timezone="Europe/Berlin", redbeat_redis_url=redis_url, redbeat_redis_options={})
    return app


@pytest.fixture
def schedules(app: Celery, close_later: Callable[[Any], Any]) -> Schedules:
    return close_later(Schedules(app))


@pytest.fixture
def import_(app: Celery) -> Import:
    def run(*words: str, exit_code: int = 0) -> Result:
        context = CLIContext(app=app, no_color=True, workdir=None)
        done = CliRunner().invoke(once_group, ["schedules", "import", "redbeat", *words], obj=context)
        assert done.exit_code == exit_code, done.output
        return done

    return run


def save(app: Celery, name: str, when: Any, ago: timedelta | None = MINUTE, **more: Any) -> datetime | None:
    """Have RedBeat store an entry that it ran so long ago, None: never; returns when."""
    entry = RedBeatSchedulerEntry(name, more.pop("task", "proj.work"), when, app=app, **more)
    entry.save()
    if ago is not None:
        entry.reschedule(datetime.now(timezone.utc) - ago)
        return entry.last_run_at
    client = redis.Redis.from_url(app.conf.redbeat_redis_url)
    client.hset(entry.key, "meta", json.dumps({"last_run_at": None}))
    client.close()
    return None


def told(result: Result) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}


def counts_from(schedules: Schedules, name: str) -> datetime:
    (known,) = read_definitions(schedules._store, [name])
    return known.since


def anchor_of(found: Schedule) -> datetime | None:
    return datetime.fromisoformat(found.once["anchor"]) if "anchor" in found.once else None


# ----------------------------------------------------------------------------------------------- what is carried


def test_what_redbeat_stores_goes_on(app: Celery, import_: Import, schedules: Schedules) -> None:
    """Task, arguments, options, crontab in the app's zone; it counts from RedBeat's last run of it."""
    due = datetime(2027, 5, 1, 12, tzinfo=BERLIN)
    app.conf.once_beat_limits = {"reports": 3}
    once = {"catch_up": "all", "overlap": "buffer_one", "limit": "reports", "deadline": 900, "on_failure": "proj.tell"}
    last = save(
        app, "at night", crontab(hour=2, minute="*/30", day_of_week=[1, 5]),
        args=["bolts", due], kwargs={"kind": "daily"},
        options={"queue": "slow", "expires": 60, "once": once},
    )  # fmt: skip
    said = import_("--by", "anna")
    assert said.output.startswith("+ at night: proj.work, */30 2 * * [1, 5] Europe/Berlin, from 20")
    assert said.stdout.endswith(f"1 imported, 0 left out.\nBeats of RedBeat's wait until {LOCK} is deleted.\n")
    assert said.stderr.splitlines() == [
        "once: this app doesn't know the task 'proj.tell'",
        "once: this app doesn't know the task 'proj.work'",
    ]
    found = schedules.get("at night")
    assert found.schedule == crontab(hour=2, minute="*/30", day_of_week=[1, 5])
    assert found.schedule.tz == BERLIN
    assert (list(found.args), found.kwargs) == (["bolts", due], {"kind": "daily"})
    assert (found.options, found.once) == ({"queue": "slow", "expires": 60}, once)
    assert (found.changed_by, found.note, found.paused) == ("anna", "imported from RedBeat", False)
    assert counts_from(schedules, "at night") == last


BEGIN = datetime(2026, 1, 5, 9, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    "when",
    [
        schedule(0.5),
        schedule(3600.0),
        schedule(86400.0),
        schedule(7200.0, relative=True),
        crontab(hour="2,14", minute=30),
        rrule("MINUTELY", BEGIN, interval=7),
        rrule("WEEKLY", BEGIN, interval=2, wkst=SU, byweekday=[MO, SU], byhour=[9, 17]),
        rrule("MONTHLY", BEGIN, byweekday=(MO, TU, WE), bysetpos=-1),
        rrule("YEARLY", BEGIN, bymonth=[2, 3, 12], bymonthday=-1, until=BEGIN + 900 * DAY),
        rrule("DAILY", BEGIN, count=1000, byweekday=4),
        rrule("DAILY", BEGIN, count=3),
    ],
    ids=repr,
)
def test_it_starts_when_redbeats_own_entry_would(app: Celery, import_: Import, schedules: Schedules, when: Any) -> None:
    """An interval on the grid of its last run; a rule that has ended never. It is stored and read again."""
    last = save(app, "tick", when)
    import_()
    theirs = RedBeatSchedulerEntry.from_key("redbeat:tick", app=app)
    theirs.schedule.nowfun = lambda: theirs.last_run_at
    found = schedules.get("tick")
    assert counts_from(schedules, "tick") == last
    for _ in range(4):
        last = next_start(found.schedule, last, anchor=anchor_of(found))
        assert last == theirs.due_at
        if last is None:
            break
        theirs.last_run_at = last
    assert told(import_("--json"))["tick"]["what"] == "same"


def test_one_that_never_ran_is_due_at_once(app: Celery, import_: Import, schedules: Schedules) -> None:
    """As RedBeat would send it at once: its newest window is owed."""
    save(app, "interval", schedule(3600.0), None)
    save(app, "crontab", crontab(hour=2, minute=30), None)
    save(app, "rrule", rrule("HOURLY", dtstart=datetime(2026, 1, 1, tzinfo=timezone.utc), app=app), None)
    before = datetime.now(timezone.utc)
    import_()
    for name in ("interval", "crontab", "rrule"):
        found = schedules.get(name)
        start = next_start(found.schedule, counts_from(schedules, name), anchor=anchor_of(found))
        assert start - counts_from(schedules, name) == timedelta(microseconds=1)
        assert start <= datetime.now(timezone.utc)
        following = next_start(found.schedule, start, anchor=anchor_of(found))
        assert following > before
    since = {name: counts_from(schedules, name) for name in ("interval", "crontab", "rrule")}
    assert {entry["what"] for entry in told(import_("--json")).values()} == {"same"}
    assert {name: counts_from(schedules, name) for name in since} == since, "another import doesn't make it due again"


def test_an_entry_of_the_code_goes_on_too(app: Celery, import_: Import, schedules: Schedules) -> None:
    """It stays in beat_schedule, and a beat that loads it goes on where RedBeat stopped; then once more."""
    app.conf.beat_schedule = {"in the code": {"task": "proj.work", "schedule": crontab(minute="*")}}
    limits = EntryPolicy()
    for ago in (3, 2):
        last = save(app, "in the code", crontab(minute="*"), ago * MINUTE)
        assert import_().output.startswith("= in the code: from 20")
        assert schedules.get("in the code") is None
        account = schedules._store.account("in the code")
        assert account.cursor == last
        request = LoadRequest("in the code", "b:1:c", account.fingerprint, ttl=9e4, policy=limits)
        (loaded,) = schedules._store.load_many([request])
        assert (loaded.cursor, loaded.news) == (last, "same"), "the fingerprint is that of a beat of the same app"


# -------------------------------------------------------------------------------------------------- what isn't


TEN = {"__type__": "interval", "every": 10.0, "relative": False}
DEFINITION = {
    "name": "odd", "task": "proj.work", "args": [], "kwargs": {}, "options": {}, "enabled": True,
    "schedule": TEN,
}  # fmt: skip
RUN = {"last_run_at": {"__type__": "datetime", "year": 2026, "month": 11, "day": 1, "hour": 0, "minute": 0, "second": 0,
                       "microsecond": 0, "timezone": "UTC"}}  # fmt: skip
RULE = {"__type__": "rrule", "freq": 3, "dtstart": 1767225600, "dtstart_tz": 60.0}


def odd(**changed: Any) -> str:
    return json.dumps({**DEFINITION, **changed})


@pytest.mark.parametrize(
    ("definition", "meta", "why"),
    [
        (None, None, "RedBeat can't read it: KeyError('redbeat:odd')"),
        ("{", None, "RedBeat can't read it: JSONDecodeError("),
        ("[]", None, "RedBeat can't read it: AttributeError("),
        pytest.param(odd(args=["x" * 99_999]), None, "a schedule's definition: found 100", id="long"),
        pytest.param(odd(args=json.loads("[" * 300 + "]" * 300)), None, "its JSON is nested", id="nested"),
        ('{"__type__": "weekday", "wkday": 1}', None, "RedBeat can't read it: AttributeError"),
        (b"\xff", None, "RedBeat can't read it: UnicodeDecodeError("),
        (odd(name="even"), None, "name: found 'even', expected that of its key"),
        (odd(more=1), None, "RedBeat can't read it: TypeError("),
        (odd(task=7), None, "task: found 7, expected the name of a task"),
        (odd(options=[7]), None, "options: found [7], expected an object"),
        (odd(options={"once": {"grce": 1}}), None, "beat entry 'odd', option 'once': unknown key 'grce'"),
        (odd(kwargs={"a": {"__type__": "set", "__value__": [1]}}), None, "kwargs: "),
        (odd(schedule=None), None, "schedule: found None, expected an interval, a crontab or an rrule"),
        (odd(schedule={"__type__": "os.system"}), None, "RedBeat can't read it: AttributeError("),
        (odd(schedule={"__type__": "crontab", "minute": "99"}), None, "RedBeat can't read it: ValueError("),
        (odd(schedule={"__type__": "crontab", "nowfun": "eval"}), None, "schedule: <crontab: * * * * *"),
        (odd(schedule={**TEN, "every": 0}), None, "schedule: found an interval of 0 s, expected 1 ms"),
        (odd(schedule={**TEN, "every": 1e300}), None, "RedBeat can't read it: OverflowError("),
        (odd(schedule={**TEN, "every": float("nan")}), None, "RedBeat can't read it: ValueError("),
        (odd(schedule={**RULE, "dtstart": "now"}), None, "RedBeat can't read it: TypeError("),
        (odd(schedule={**RULE, "byday": 1}), None, "RedBeat can't read it: TypeError("),
        (odd(schedule={**RULE, "count": 10**9}), None, "count: found 1000000000, expected a whole number"),
        (odd(), "{", "RedBeat can't read it: JSONDecodeError("),
        (odd(), '{"last_run_at": 7}', "last_run_at: found 7, expected a datetime"),
        (odd(), json.dumps(RUN).replace("UTC", "../../etc/passwd"), "RedBeat can't read it: ValueError("),
        (odd(schedule={"__type__": "crontab"}), json.dumps(RUN).replace("2026", "1").replace("UTC", "Asia/Tokyo")
         .replace("11", "1"), "date value out of range"),
        (odd(), json.dumps(RUN).replace("2026", "2999"), "last_run_at: found 2999-11-01"),
    ],
)  # fmt: skip
def test_what_cant_be_carried_over_is_named(import_, app, schedules, raw, definition, meta, why) -> None:
    """With why, and the command ends with 1; the others are carried over. Nothing is evaluated."""
    save(app, "even", schedule(10.0))
    fields = {"definition": definition, "meta": json.dumps(RUN) if meta is None else meta}
    raw.hset("redbeat:odd", mapping={name: text for name, text in fields.items() if text is not None})
    raw.zadd("redbeat::schedule", {"redbeat:odd": 1})
    for words in (["--dry-run"], []):
        said = import_(*words, exit_code=1)
        (line,) = [line for line in said.output.splitlines() if line.startswith("!")]
        assert line.startswith(f"! odd: left out: {why}"), line
    assert [each.name for each in schedules.list()] == ["even"]


@pytest.mark.parametrize(
    ("conf", "words", "exit_code", "output"),
    [
        ({"redbeat_key_prefix": "text"}, [], 65, "the keys text:schedule and text:statics aren't RedBeat's"),
        ({"redbeat_key_prefix": "bytes"}, [], 65, "the keys bytes:schedule and bytes:statics aren't RedBeat's"),
        ({}, [], 2, "redbeat::schedule is empty: does redbeat_redis_url, or --url, name RedBeat's Redis?"),
        ({}, ["--url", "redis://:geheim@127.0.0.1:1/0"], 69, "RedBeat's Redis: ConnectionError: "),
        ({"redbeat_redis_url": "amqp://me:geheim@it//"}, [], 78, "redbeat_redis_url: found amqp://me:**@it//, "),
        ({"redbeat_redis_options": {"passwrd": "geheim"}}, [], 78, "redbeat_redis_url: found redis://"),
    ],
)  # fmt: skip
def test_a_redis_that_isnt_redbeats(app, import_, raw, conf, words, exit_code, output) -> None:
    """One line, without a password; it gets no lock."""
    raw.set("text:schedule", "mine")
    raw.zadd("bytes:schedule", {b"\xff": 1})
    app.conf.update(conf)
    said = import_(*words, exit_code=exit_code).output
    assert said.startswith(f"once: {output}")
    assert (said.count("\n"), "geheim" in said) == (1, False)
    assert raw.keys("redbeat*") == []


# ------------------------------------------------------------------------------------------------- who may work


def test_while_a_redbeat_beat_works_nothing_is_imported(app, import_, schedules, raw) -> None:
    """What it will send isn't known yet. --dry-run shows what there is, and leaves the lock alone."""
    save(app, "tick", schedule(10.0))
    raw.set(LOCK, "token", px=100_000)
    said = import_(exit_code=1)
    assert said.output.startswith(f"once: a beat of RedBeat's holds {LOCK}: stop all of them; if one was killed, its")
    assert list(schedules.list()) == []
    said = import_("--dry-run")
    assert said.stderr.startswith(f"once: a beat of RedBeat's holds {LOCK}")
    assert said.stdout.startswith("+ tick: proj.work, every 10 s, from 20")
    assert said.stdout.endswith("\n1 to import, 0 left out.\n")
    assert list(schedules.list()) == []
    assert raw.get(LOCK) == "token"
    raw.delete(LOCK)
    import_("--dry-run")
    assert raw.get(LOCK) is None
    import_()
    assert (raw.get(LOCK), raw.ttl(LOCK)) == (HELD, -1)


def test_the_rights_that_it_needs(app, import_, raw, redis_server, schedules) -> None:
    """Those on RedBeat's keys that the page says, and no others. Nothing but the lock is changed."""
    save(app, "tick", schedule(10.0))
    before = {key: raw.dump(key) for key in raw.keys("redbeat*")}
    page = (Path(__file__).resolve().parents[2] / "docs/moving/redbeat.md").read_text()
    (line,) = re.findall(r"with limited\s+rights needs (.*?) on them", page, re.DOTALL)
    may = [f"+{word.lower()}" for word in re.findall(r"`(\w+)`", line)]
    raw.execute_command("ACL", "SETUSER", "mover", "on", ">secret", "resetkeys", "~redbeat*", "-@all", "+hello", *may)
    import_("--url", f"redis://mover:secret@127.0.0.1:{redis_server.port}/0")
    raw.execute_command("ACL", "DELUSER", "mover")
    assert schedules.get("tick") is not None
    assert {key: raw.dump(key) for key in raw.keys("redbeat*") if key != LOCK} == before
    assert raw.exists(LOCK)


# ----------------------------------------------------------------------------------------------- once more


def test_another_import_goes_on_where_redbeat_has_got_to(app: Celery, import_: Import, schedules: Schedules) -> None:
    """Its cursor follows RedBeat's runs, never back; nothing changes where nothing has run."""
    first = save(app, "tick", crontab(minute="*"), timedelta(minutes=9))
    import_()
    assert counts_from(schedules, "tick") == first
    assert told(import_("--json"))["tick"]["what"] == "same"
    assert [change.version for change in schedules.changes("tick")] == [1]
    later = save(app, "tick", crontab(minute="*"), timedelta(minutes=3))
    assert told(import_("--json"))["tick"]["what"] == "same"
    assert counts_from(schedules, "tick") == later
    save(app, "tick", crontab(minute="*/2"), timedelta(minutes=6))
    assert told(import_("--json"))["tick"]["what"] == "change"
    assert counts_from(schedules, "tick") == later
    found = schedules.get("tick")
    assert found.schedule == crontab(minute="*/2")


def test_one_that_is_disabled_is_paused(app: Celery, import_: Import, schedules: Schedules) -> None:
    """Its windows count from now: those of the time when it was disabled aren't owed."""
    save(app, "off", schedule(10.0), timedelta(days=9), enabled=False)
    assert import_().output.startswith("+ off: proj.work, every 10 s, paused\n")
    found = schedules.get("off")
    assert found.paused
    assert counts_from(schedules, "off") == found.changed_at


def test_one_that_is_gone_here_or_cant_be_read(app, import_, schedules, raw) -> None:
    """What was deleted comes again, and isn't owed; what can't be read isn't overwritten, and its name is said."""
    last = save(app, "tick", schedule(10.0))
    import_()
    schedules.delete("tick")
    assert told(import_("--json"))["tick"]["what"] == "add"
    assert counts_from(schedules, "tick") == last
    raw.hset(schedules._store.keys.of_entry("def", "tick"), "text", '{"v":1}')
    (line,) = [line for line in import_(exit_code=1).stdout.splitlines() if line.startswith("!")]
    assert line.startswith("! tick: left out: schedule 'tick': task: found None")


def test_what_was_changed_here_stays(app: Celery, import_: Import, schedules: Schedules) -> None:
    """And who changed it is still said. But what RedBeat has run since isn't owed."""
    save(app, "tick", schedule(10.0), timedelta(minutes=9))
    import_()
    schedules.set("tick", task="proj.other", schedule=60, by="anna", note="slower")
    since = counts_from(schedules, "tick")
    moved = told(import_("--json"))["tick"]
    assert (moved["what"], moved["why"]) == ("kept", "it was changed here by anna, and stays so")
    assert counts_from(schedules, "tick") == since
    later = save(app, "tick", schedule(10.0), timedelta(0))
    import_()
    found = schedules.get("tick")
    assert (found.task, found.changed_by, found.note) == ("proj.other", "anna", "slower")
    assert counts_from(schedules, "tick") == later
    schedules.pause("tick", by="bob")
    save(app, "tick", schedule(10.0), timedelta(0))
    import_()
    found = schedules.get("tick")
    assert (found.paused, found.changed_by) == (True, "bob")
