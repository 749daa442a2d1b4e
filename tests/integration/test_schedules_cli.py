"""``celery once schedules …`` as a person types it, and the file that it applies: on a real server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
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
from dateutil.rrule import MO, SU
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from celery_once_beat import Schedule, Schedules
from celery_once_beat.cli import once as once_group
from celery_once_beat.client import Wanted
from celery_once_beat.client.file import apply, compare, read_file
from celery_once_beat.errors import NotAppliedError, StoreUnavailableError, VersionConflictError
from celery_once_beat.features.runtime.store import read_definitions
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.schedules import cron
from celery_once_beat.store import LoadRequest
from celery_once_beat.windows import next_start

Run = Callable[..., Result]


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(timezone="Europe/Berlin", redbeat_redis_url=redis_url, redbeat_redis_options={})
    app.conf.beat_schedule = {"static": {"task": "proj.work", "schedule": 60.0}}

    @app.task(name="proj.work", shared=False)
    def work() -> None: ...

    return app


@pytest.fixture
def schedules(app: Celery, close_later: Callable[[Any], Any]) -> Schedules:
    return close_later(Schedules(app))


@pytest.fixture
def run(app: Celery) -> Run:
    """Run ``once schedules`` in this process: each of its own would start Celery."""

    def run(*words: str, exit_code: int = 0, typed: str = "") -> Result:
        context = CLIContext(app=app, no_color=True, workdir=None)
        done = CliRunner().invoke(once_group, ["schedules", *words], obj=context, input=typed)
        assert done.exit_code == exit_code, done.output
        return done

    return run


def test_set_show_list_pause_delete_and_changes(run: Run, schedules: Schedules) -> None:
    """A life of a schedule, each step as text and as JSON."""
    said = run("set", "report", "proj.work", "--cron", "0 6 * * mon-fri", "--args", "[42]", "--by", "anna", "--note=x")
    assert said.output.startswith("report: version 1, next 20")
    found = schedules.get("report")
    assert (found.task, found.args, found.changed_by, found.note) == ("proj.work", (42,), "anna", "x")
    assert found.schedule == cron("0 6 * * mon-fri", tz="Europe/Berlin")
    assert "0 6 * * mon-fri Europe/Berlin" in run("show", "report").output
    shown = json.loads(run("show", "report", "--json").output)
    assert shown["schedule"] == {"type": "cron", "line": "0 6 * * mon-fri", "tz": "Europe/Berlin"}
    assert (shown["name"], shown["version"], shown["changed_by"], shown["paused"]) == ("report", 1, "anna", False)
    said = run(
        "set", "report", "proj.work", "--every", "90s", "--if-version", "1", "--options", '{"queue": "slow"}', "--json"
    )
    assert json.loads(said.output)["version"] == 2
    assert run("set", "report", "proj.work", "--every", "1h", "--if-version", "1", exit_code=1).output == (
        "once: schedule 'report': expected version 1, it has version 2\n"
    )
    assert run("pause", "report", "--note", "too loud").output == "report: paused\n"
    listed = run("list").output.splitlines()
    assert listed[0].split() == ["NAME", "TASK", "SCHEDULE", "STATE", "VERSION", "CHANGED", "BY"]
    assert listed[1].split()[:7] == ["report", "proj.work", "every", "90", "s", "paused", "3"]
    said = run("pause", "report", "none", "--json", exit_code=2)
    assert json.loads(said.stdout) == [{"entry": "report", "paused": True}], "what was done before it failed"
    assert run("show", "report").output.count("paused") == 1
    assert not json.loads(run("resume", "report", "--json").output)[0]["paused"]
    (of_list,) = json.loads(run("list", "--prefix", "rep", "--json").output)
    assert (of_list["paused"], of_list["options"]) == (False, {"queue": "slow"})
    assert json.loads(run("list", "--prefix", "x", "--json").output) == []
    assert run("list", "--prefix", "x").output == "No schedule is set.\n"
    assert "Delete report? [y/N]" in run("delete", "report", exit_code=1, typed="n\n").output
    assert schedules.get("report") is not None
    said = run("delete", "report", "none", "--yes", "--json", "--by", "bob")
    assert json.loads(said.output) == [{"name": "report", "deleted": True}, {"name": "none", "deleted": False}]
    changes = json.loads(run("changes", "report", "--json").output)
    assert [(change["what"], change["by"]) for change in changes][::4] == [("delete", "bob"), ("set", "anna")]
    assert [line.split()[0] for line in run("changes", "report").output.splitlines()] == ["VERSION", *"54321"]


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (["show", "reprt"], 2, "once: there is no schedule 'reprt' (did you mean 'report'?)"),
        (["changes", "reprt"], 2, "once: there is no schedule 'reprt', and none was deleted of late"),
        (["pause", "reprt"], 2, "once: no beat has loaded 'reprt'"),
        (["set", "a", "t"], 2, "once: say when: one of --every, --cron, --at and --schedule"),
        (["set", "a", "t", "--every", "1h", "--cron", "* * * * *"], 2, "once: say when:"),
        (["set", "a", "t", "--every", "soon"], 2, "once: --every: found 'soon', expected seconds, a timedelta"),
        (["set", "a", "t", "--cron", "* * *"], 2, "once: --cron: found 3 fields in '* * *', expected 5"),
        (["set", "a", "t", "--at", "soon"], 2, "once: --at: found 'soon'"),
        (["set", "a", "t", "--at", "2020-01-01T00:00"], 78, "once: schedule 'a': found 2019-12-31T23:00"),
        (["set", "a", "t", "--schedule", '{"type": "tide"}'], 2, "once: --schedule: schedule: found the type 'tide'"),
        (["set", "a", "t", "--every", "1d", "--tz", "Mars"], 78, "once: schedule 'a': tz: found 'Mars'"),
        (["set", "a", "t", "--every", "1h", "--args", "{}"], 78, "once: schedule 'a': args: found {}, expected a list"),
        (["set", "a", "t", "--every", "1h", "--once", "{"], 2, "once: --once: found '{', expected JSON"),
        (["set", "static", "t", "--every", "1h"], 78, "once: schedule 'static': beat_schedule has"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(run: Run, schedules: Schedules, words: list[str], exit_code: int, said: str) -> None:
    """It names what was found and what was expected, and changes nothing."""
    schedules.set("report", task="proj.work", schedule=60)
    log = run(*words, exit_code=exit_code).output
    assert log.startswith(said)
    assert log.count("\n") == 1
    assert [each.version for each in schedules.list()] == [1]


def test_one_that_cant_be_read_is_named_and_the_others_are_shown(run, schedules, raw) -> None:
    """List and export end with 65, and apply changes nothing where it would have to read it."""
    for name in ("bad", "good", "worse"):
        schedules.set(name, task="proj.work", schedule=60)
    for name in ("bad", "worse"):
        raw.hset(schedules._store.keys.of_entry("def", name), "text", '{"v":1}')
    for words in (["list"], ["export"]):
        said = run(*words, exit_code=os.EX_DATAERR)
        assert "good" in said.stdout
        assert [line.partition(": ")[2].split()[:2] for line in said.stderr.splitlines()] == [
            ["schedule", "'bad':"], ["schedule", "'worse':"],
        ]  # fmt: skip
    text = json.dumps({"v": 1, "schedules": {}})
    assert "'bad'" in run("apply", "-f", "-", "--prune", "b", "-y", typed=text, exit_code=os.EX_DATAERR).output
    assert run("apply", "-f", "-", "--prune", "g", "-y", typed=text).output.endswith("1 applied.\n")


# -- the file


def test_a_file_goes_there_and_back(run: Run, schedules: Schedules) -> None:
    """What export prints, apply sets; the same schedules are the same text, and one more is a few lines more."""
    schedules.set("b", task="proj.work", schedule=crontab(hour=6), args=("ä",), once={"catch_up": "all"}, by="anna")
    schedules.set("a", task="proj.work", schedule=60)
    schedules.pause("a")
    text = run("export").stdout
    assert list(json.loads(text)["schedules"]) == ["a", "b"]
    assert json.loads(text)["schedules"]["a"] == {
        "task": "proj.work", "schedule": {"type": "interval", "seconds": 60}, "paused": True,
    }  # fmt: skip
    assert run("apply", "-f", "-", typed=text).output == "Nothing differs.\n"
    before = {each.name: each for each in schedules.list()}
    for name in ("a", "b"):
        schedules.delete(name)
    assert run("apply", "-f", "-", "-y", typed=text).output.endswith("2 applied.\n")
    for each in schedules.list():
        assert (each.text(), each.paused) == (before[each.name].text(), before[each.name].paused)
    assert run("export").stdout == text
    schedules.set("ab", task="proj.work", schedule=60)
    lines = run("export").stdout.splitlines()
    assert [line for line in lines if line not in text.splitlines()] == ['    "ab": {']


def test_a_diff_then_a_question_then_all(run: Run, schedules: Schedules) -> None:
    """What the file doesn't have is kept, but for the prefix that is pruned; --dry-run and n change nothing."""
    for name in ("tenant-1", "tenant-2", "tenant-3", "other"):
        schedules.set(name, task="proj.work", schedule=60, args=(1,))
    schedules.pause("tenant-2", by="bob")
    file = json.dumps({"v": 1, "schedules": {
        "tenant-0": {"task": "proj.work", "schedule": {"type": "interval", "seconds": 30}},
        "tenant-1": {"task": "proj.work", "schedule": {"type": "interval", "seconds": 90}, "args": [2]},
        "tenant-2": {"task": "proj.work", "schedule": {"type": "interval", "seconds": 60}, "args": [1]},
    }})  # fmt: skip
    diff = (
        "+ tenant-0: proj.work, every 30 s\n~ tenant-1: proj.work, every 90 s\n    args: [1] → [2]\n"
        '    schedule: {"seconds": 60, "type": "interval"} → {"seconds": 90, "type": "interval"}\n'
    )
    pruned = "- tenant-3: proj.work, every 1 min\n"
    assert run("apply", "-f", "-", "--dry-run", typed=file).output == diff
    assert run("apply", "-f", "-", "--dry-run", "--prune", "tenant-", typed=file).output == diff + pruned
    told = json.loads(run("apply", "-f", "-", "--dry-run", "--json", "--prune", "tenant-", typed=file).stdout)
    assert told["applied"] is False
    assert [(each["name"], each["what"]) for each in told["changes"]] == [
        ("tenant-0", "add"), ("tenant-1", "change"), ("tenant-3", "delete"),
    ]  # fmt: skip
    assert run("apply", "-f", "-", typed=file, exit_code=1).output.startswith(diff)
    assert [each.version for each in schedules.list()] == [1, 1, 2, 1]
    said = run("apply", "-f", "-", "-y", "--prune", "tenant-", "--by", "ci", "--note", "abc123", typed=file)
    assert said.output == f"{diff}{pruned}3 applied.\n"
    assert [(each.name, each.version, each.paused) for each in schedules.list()] == [
        ("other", 1, False), ("tenant-0", 1, False), ("tenant-1", 2, False), ("tenant-2", 2, True),
    ]  # fmt: skip
    (deletion, _) = schedules.changes("tenant-3")
    assert (deletion.by, deletion.note) == ("ci", "abc123")


EVERY_SECOND = '"task": "t", "schedule": {"type": "interval", "seconds": 1}'
PAST = '"task": "t", "schedule": {"type": "one-off", "at": "2020-01-01T00:00:00.000000Z"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "schedules: the JSON can't be read"),
        pytest.param("[" * 100_000, "schedules: the JSON can't be read", id="deep"),
        ("[]", "schedules: found [], expected an object with 'v': 1 and 'schedules'"),
        ('{"v": 2, "schedules": {}}', "schedules: found {'v': 2"),
        ('"a": {}, "a": {}', "schedules: the JSON can't be read: 'a' stands there twice"),
        ('"": {}', "name of a schedule: found ''"),
        (f'"a": {{{EVERY_SECOND}, "paused": 1}}', "schedule 'a', paused: found 1"),
        ('"a": {"tsk": "t"}', "schedule 'a': definition: unknown field 'tsk' (did you mean 'task'?)"),
        (f'"static": {{{EVERY_SECOND}}}', "schedule 'static': beat_schedule has an entry of that name"),
        (f'"a": {{{PAST}}}', "schedule 'a': found 2020-01-01T00:00:00.000000Z, which is past"),
    ],
)
def test_a_wrong_file_changes_nothing(run: Run, schedules: Schedules, text: str, said: str) -> None:
    """All of it is checked first: one wrong schedule, and none is set."""
    if text.startswith('"'):
        text = f'{{"v": 1, "schedules": {{"0": {{{EVERY_SECOND}}}, {text}}}}}'
    log = run("apply", "-f", "-", "-y", typed=text, exit_code=os.EX_CONFIG).output
    assert log.startswith(f"once: {said}")
    assert log.count("\n") == 1
    assert list(schedules.list()) == []


class Interrupted(Schedules):
    """A client that lets something happen right before or after it sets a name, once each."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.happens: dict[tuple[str, str], Callable[[], Any]] = {}

    def put(self, wanted: Wanted, *args: Any, **given: Any) -> Any:
        self.happens.pop(("before", wanted.name), lambda: None)()
        made = super().put(wanted, *args, **given)
        self.happens.pop(("after", wanted.name), lambda: None)()
        return made


FILE = json.dumps({"v": 1, "schedules": {
    name: {"task": "proj.work", "schedule": {"type": "interval", "seconds": 90}} for name in ("a", "b", "c", "d")
}})  # fmt: skip


@pytest.fixture
def interrupted(app: Celery, schedules: Schedules) -> Iterator[Interrupted]:
    """Three of four are there: one is new, one paused; and one that a file prunes."""
    for name in ("a", "c", "d", "pruned"):
        schedules.set(name, task="proj.work", schedule=60)
    schedules.pause("a")
    with closing(Interrupted(app)) as made:
        yield made


def standing(schedules: Schedules) -> dict[str, tuple[float, bool]]:
    return {each.name: (each.as_json()["schedule"]["seconds"], each.paused) for each in schedules.list()}


def test_a_conflict_half_way_takes_back_what_was_set(interrupted: Interrupted, schedules: Schedules) -> None:
    """Somebody sets the third one meanwhile: theirs stays, the first two are as they were, and it says so."""
    interrupted.happens["before", "c"] = lambda: schedules.set("c", task="proj.work", schedule=30)
    edits = compare(interrupted, read_file(FILE), prune="pruned")
    with pytest.raises(
        NotAppliedError, match=r"^nothing is applied: schedule 'c': expected version 1, it has version 2$"
    ) as error:
        apply(interrupted, edits, "ci", "abc123")
    assert isinstance(error.value.__cause__, VersionConflictError)
    assert standing(schedules) == {"a": (60, True), "c": (30, False), "d": (60, False), "pruned": (60, False)}
    assert [(change.what, change.note) for change in schedules.changes("b")] == [
        ("delete", "taken back: not all could be applied"), ("set", "abc123"),
    ]  # fmt: skip
    apply(interrupted, compare(interrupted, read_file(FILE), prune="pruned"))
    assert standing(schedules) == {"a": (90, True), "b": (90, False), "c": (90, False), "d": (90, False)}


def test_what_another_has_changed_since_is_not_taken_back(interrupted: Interrupted, schedules: Schedules) -> None:
    """It is named, and everything else is taken back; what another has deleted stays deleted."""

    def happens() -> None:
        schedules.delete("a")
        schedules.pause("b")
        schedules.set("d", task="proj.work", schedule=30)

    interrupted.happens["before", "d"] = happens
    with pytest.raises(NotAppliedError) as error:
        apply(interrupted, compare(interrupted, read_file(FILE)))
    assert str(error.value).startswith("not all is applied: ")
    assert str(error.value).endswith("except 'b' (another has changed it since), 'a' (another has changed it since)")
    assert standing(schedules) == {"b": (90, True), "c": (60, False), "d": (30, False), "pruned": (60, False)}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost(interrupted: Interrupted, schedules: Schedules, when: str) -> None:
    """Whether Redis had carried out the last one or not: it is as it was, too."""

    def happens() -> None:
        raise StoreUnavailableError("Redis: no answer")

    interrupted.happens[when, "c"] = happens
    before = standing(schedules)
    with pytest.raises(NotAppliedError, match=r"^nothing is applied: Redis: no answer$"):
        apply(interrupted, compare(interrupted, read_file(FILE)))
    assert standing(schedules) == before


def test_a_redis_that_stays_away(interrupted, schedules, start_redis) -> None:
    """Nobody can take anything back: each name is said with that."""
    server = start_redis()
    with closing(Interrupted(url=server.url())) as away:
        for name in ("a", "c", "d"):
            away.set(name, task="proj.work", schedule=60)
        edits = compare(away, read_file(FILE))
        away.happens["before", "c"] = server.kill
        with pytest.raises(NotAppliedError) as error:
            apply(away, edits)
    said = str(error.value)
    assert said.startswith("not all is applied: Redis: ")
    assert [name for name in "abcd" if f"'{name}' (perhaps: Redis: " in said] == ["a", "b", "c"]


# -- import redbeat: what celery-redbeat itself has stored

BERLIN = ZoneInfo("Europe/Berlin")
LOCK = "redbeat::lock"
HELD = "celery once schedules import redbeat"
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
IMPORT = ("import", "redbeat")


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


def test_what_redbeat_stores_goes_on(app: Celery, run: Run, schedules: Schedules) -> None:
    """Task, arguments, options, crontab in the app's zone; it counts from RedBeat's last run of it."""
    due = datetime(2027, 5, 1, 12, tzinfo=BERLIN)
    app.conf.once_beat_limits = {"reports": 3}
    once = {"catch_up": "all", "overlap": "buffer_one", "limit": "reports", "deadline": 900, "on_failure": "proj.tell"}
    last = save(
        app, "at night", crontab(hour=2, minute="*/30", day_of_week=[1, 5]),
        args=["bolts", due], kwargs={"kind": "daily"},
        options={"queue": "slow", "expires": 60, "once": once},
    )  # fmt: skip
    said = run(*IMPORT, "--by", "anna")
    assert said.output.startswith("+ at night: proj.work, */30 2 * * [1, 5] Europe/Berlin, from 20")
    assert said.stdout.endswith(f"1 imported, 0 left out.\nBeats of RedBeat's wait until {LOCK} is deleted.\n")
    assert said.stderr == "once: this app doesn't know the task 'proj.tell'\n"
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
        schedule(7200.0, relative=True),
        crontab(hour="2,14", minute=30),
        rrule("WEEKLY", BEGIN, interval=2, wkst=SU, byweekday=[MO, SU], byhour=[9, 17]),
        rrule("YEARLY", BEGIN, bymonth=[2, 3, 12], bymonthday=-1, until=BEGIN + 900 * DAY),
        rrule("DAILY", BEGIN, count=3),
    ],
    ids=repr,
)
def test_it_starts_when_redbeats_own_entry_would(app: Celery, run: Run, schedules: Schedules, when: Any) -> None:
    """An interval on the grid of its last run; a rule that has ended never. It is stored and read again."""
    last = save(app, "tick", when)
    run(*IMPORT)
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
    assert told(run(*IMPORT, "--json"))["tick"]["what"] == "same"


def test_an_entry_of_the_code_goes_on_too(app: Celery, run: Run, schedules: Schedules) -> None:
    """It stays in beat_schedule, and a beat that loads it goes on where RedBeat stopped; then once more."""
    app.conf.beat_schedule = {"in the code": {"task": "proj.work", "schedule": crontab(minute="*")}}
    limits = EntryPolicy()
    for ago in (3, 2):
        last = save(app, "in the code", crontab(minute="*"), ago * MINUTE)
        assert run(*IMPORT).output.startswith("= in the code: from 20")
        assert schedules.get("in the code") is None
        account = schedules._store.account("in the code")
        assert account.cursor == last
        request = LoadRequest("in the code", "b:1:c", account.fingerprint, ttl=9e4, policy=limits)
        (loaded,) = schedules._store.load_many([request])
        assert (loaded.cursor, loaded.news) == (last, "same"), "the fingerprint is that of a beat of the same app"


# -------------------------------------------------------------------------------------------------- what isn't


RUN = {"last_run_at": {"__type__": "datetime", "year": 2026, "month": 11, "day": 1, "hour": 0, "minute": 0, "second": 0,
                       "microsecond": 0, "timezone": "UTC"}}  # fmt: skip
RULE = {"__type__": "rrule", "freq": 3, "dtstart": 1767225600, "dtstart_tz": 60.0}


TEN = {"__type__": "interval", "every": 10.0, "relative": False}
DEFINITION = {"name": "odd", "task": "proj.work", "args": [], "kwargs": {}, "options": {}, "enabled": True}


def odd(**changed: Any) -> str:
    return json.dumps({**DEFINITION, "schedule": TEN, **changed})


@pytest.mark.parametrize(
    ("definition", "meta", "why"),
    [
        ("{", None, "RedBeat can't read it: JSONDecodeError("),
        ("[]", None, "RedBeat can't read it: AttributeError("),
        pytest.param(odd(args=["x" * 99_999]), None, "a schedule's definition: found 100", id="long"),
        pytest.param(odd(args=json.loads("[" * 300 + "]" * 300)), None, "its JSON is nested", id="nested"),
        ('{"__type__": "weekday", "wkday": 1}', None, "RedBeat can't read it: AttributeError"),
        (odd(name="even"), None, "name: found 'even', expected that of its key"),
        (odd(options={"once": {"grce": 1}}), None, "beat entry 'odd', option 'once': unknown key 'grce'"),
        (odd(kwargs={"a": {"__type__": "set", "__value__": [1]}}), None, "kwargs: "),
        (odd(schedule=None), None, "schedule: found None, expected an interval, a crontab or an rrule"),
        (odd(schedule={**TEN, "every": 0}), None, "schedule: found an interval of 0 s, expected 1 ms"),
        (odd(schedule={**RULE, "count": 10**9}), None, "count: found 1000000000, expected a whole number"),
        (odd(), '{"last_run_at": 7}', "last_run_at: found 7, expected a datetime"),
        (odd(), json.dumps(RUN).replace("UTC", "../../etc/passwd"), "RedBeat can't read it: ValueError("),
        (odd(schedule={"__type__": "crontab"}), json.dumps(RUN).replace("2026", "1").replace("UTC", "Asia/Tokyo")
         .replace("11", "1"), "date value out of range"),
        (odd(), json.dumps(RUN).replace("2026", "2999"), "last_run_at: found 2999-11-01"),
    ],
)  # fmt: skip
def test_what_cant_be_carried_over_is_named(run, app, schedules, raw, definition, meta, why) -> None:
    """With why, and the command ends with 1; the others are carried over. Nothing is evaluated."""
    save(app, "even", schedule(10.0))
    fields = {"definition": definition, "meta": json.dumps(RUN) if meta is None else meta}
    raw.hset("redbeat:odd", mapping={name: text for name, text in fields.items() if text is not None})
    raw.zadd("redbeat::schedule", {"redbeat:odd": 1})
    for words in (["--dry-run"], []):
        said = run(*IMPORT, *words, exit_code=1)
        (line,) = [line for line in said.output.splitlines() if line.startswith("!")]
        assert line.startswith(f"! odd: left out: {why}"), line
    assert [each.name for each in schedules.list()] == ["even"]


@pytest.mark.parametrize(
    ("conf", "words", "exit_code", "output"),
    [
        ({"redbeat_key_prefix": "bytes"}, [], 65, "the keys bytes:schedule and bytes:statics aren't RedBeat's"),
        ({}, [], 2, "redbeat::schedule is empty: does redbeat_redis_url, or --url, name RedBeat's Redis?"),
        ({}, ["--url", "redis://:geheim@127.0.0.1:1/0"], 69, "RedBeat's Redis: ConnectionError: "),
        ({"redbeat_redis_url": "amqp://me:geheim@it//"}, [], 78, "redbeat_redis_url: found amqp://me:**@it//, "),
        ({"redbeat_redis_options": {"passwrd": "geheim"}}, [], 78, "redbeat_redis_url: found redis://"),
    ],
)  # fmt: skip
def test_a_redis_that_isnt_redbeats(app, run, raw, conf, words, exit_code, output) -> None:
    """One line, without a password; it gets no lock."""
    raw.zadd("bytes:schedule", {b"\xff": 1})
    app.conf.update(conf)
    said = run(*IMPORT, *words, exit_code=exit_code).output
    assert said.startswith(f"once: {output}")
    assert (said.count("\n"), "geheim" in said) == (1, False)
    assert raw.keys("redbeat*") == []


# ------------------------------------------------------------------------------------------------- who may work


def test_while_a_redbeat_beat_works_nothing_is_imported(app, run, schedules, raw) -> None:
    """What it will send isn't known yet. --dry-run shows what there is, and leaves the lock alone."""
    save(app, "tick", schedule(10.0))
    raw.set(LOCK, "token", px=100_000)
    said = run(*IMPORT, exit_code=1)
    assert said.output.startswith(f"once: a beat of RedBeat's holds {LOCK}: stop all of them; if one was killed, its")
    assert list(schedules.list()) == []
    said = run(*IMPORT, "--dry-run")
    assert said.stderr.startswith(f"once: a beat of RedBeat's holds {LOCK}")
    assert said.stdout.startswith("+ tick: proj.work, every 10 s, from 20")
    assert said.stdout.endswith("\n1 to import, 0 left out.\n")
    assert list(schedules.list()) == []
    assert raw.get(LOCK) == "token"
    raw.delete(LOCK)
    run(*IMPORT, "--dry-run")
    assert raw.get(LOCK) is None
    run(*IMPORT)
    assert (raw.get(LOCK), raw.ttl(LOCK)) == (HELD, -1)


def test_the_rights_that_it_needs(app, run, raw, redis_server, schedules) -> None:
    """Those on RedBeat's keys that the page says, and no others. Nothing but the lock is changed."""
    save(app, "tick", schedule(10.0))
    before = {key: raw.dump(key) for key in raw.keys("redbeat*")}
    page = (Path(__file__).resolve().parents[2] / "docs/moving/redbeat.md").read_text()
    (line,) = re.findall(r"with limited\s+rights needs (.*?) on them", page, re.DOTALL)
    may = [f"+{word.lower()}" for word in re.findall(r"`(\w+)`", line)]
    raw.execute_command("ACL", "SETUSER", "mover", "on", ">secret", "resetkeys", "~redbeat*", "-@all", "+hello", *may)
    run(*IMPORT, "--url", f"redis://mover:secret@127.0.0.1:{redis_server.port}/0")
    raw.execute_command("ACL", "DELUSER", "mover")
    assert schedules.get("tick") is not None
    assert {key: raw.dump(key) for key in raw.keys("redbeat*") if key != LOCK} == before
    assert raw.exists(LOCK)


# ----------------------------------------------------------------------------------------------- once more


def test_one_that_never_ran_is_due_at_once(app: Celery, run: Run, schedules: Schedules) -> None:
    """As RedBeat would send it at once: its newest window is owed. One that is disabled is paused, and owes nothing."""
    hourly = rrule("HOURLY", dtstart=datetime(2026, 1, 1, tzinfo=timezone.utc), app=app)
    never = {"interval": schedule(3600.0), "crontab": crontab(hour=2, minute=30), "rrule": hourly}
    for name, when in never.items():
        save(app, name, when, None)
    save(app, "off", schedule(10.0), timedelta(days=9), enabled=False)
    before = datetime.now(timezone.utc)
    assert "+ off: proj.work, every 10 s, paused\n" in run(*IMPORT).output
    since = {name: counts_from(schedules, name) for name in never}
    for name in never:
        found = schedules.get(name)
        start = next_start(found.schedule, since[name], anchor=anchor_of(found))
        assert start - since[name] == timedelta(microseconds=1)
        assert start <= datetime.now(timezone.utc)
        assert next_start(found.schedule, start, anchor=anchor_of(found)) > before
    off = schedules.get("off")
    assert (off.paused, counts_from(schedules, "off")) == (True, off.changed_at)
    assert {entry["what"] for entry in told(run(*IMPORT, "--json")).values()} == {"same"}
    assert {name: counts_from(schedules, name) for name in never} == since, "another import doesn't make it due again"


def test_what_was_changed_here_stays(app: Celery, run: Run, schedules: Schedules, raw: redis.Redis) -> None:
    """And who changed it is still said. But what RedBeat has run since isn't owed. What was deleted comes again."""
    last = save(app, "tick", schedule(10.0), timedelta(minutes=9))
    run(*IMPORT)
    schedules.delete("tick")
    assert told(run(*IMPORT, "--json"))["tick"]["what"] == "add"
    assert counts_from(schedules, "tick") == last
    schedules.set("tick", task="proj.other", schedule=60, by="anna", note="slower")
    since = counts_from(schedules, "tick")
    moved = told(run(*IMPORT, "--json"))["tick"]
    assert (moved["what"], moved["why"]) == ("kept", "it was changed here by anna, and stays so")
    assert counts_from(schedules, "tick") == since
    later = save(app, "tick", schedule(10.0), timedelta(0))
    schedules.pause("tick", by="bob")
    run(*IMPORT)
    found = schedules.get("tick")
    assert (found.task, found.paused, found.changed_by) == ("proj.other", True, "bob")
    assert counts_from(schedules, "tick") == later
    raw.hset(schedules._store.keys.of_entry("def", "tick"), "text", '{"v":1}')
    (line,) = [line for line in run(*IMPORT, exit_code=1).stdout.splitlines() if line.startswith("!")]
    assert line.startswith("! tick: left out: schedule 'tick': task: found None"), "it isn't overwritten"
