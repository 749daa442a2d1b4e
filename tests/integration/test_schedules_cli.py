"""``celery once schedules …`` as a person types it, and the file that it applies: on a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import crontab
from click.testing import CliRunner, Result

from celery_once_beat import Schedules
from celery_once_beat.cli import once as once_group
from celery_once_beat.client import Wanted
from celery_once_beat.client.file import apply, compare, read_file
from celery_once_beat.errors import NotAppliedError, StoreUnavailableError, VersionConflictError
from celery_once_beat.schedules import cron

Run = Callable[..., Result]


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
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
        (["set", "a", "t", "--every", "0s"], 2, "once: --every: found '0s'"),
        (["set", "a", "t", "--cron", "* * *"], 2, "once: --cron: found 3 fields in '* * *', expected 5"),
        (["set", "a", "t", "--cron", "0 0 12 ? * MON"], 2, "once: --cron: found a line of Quartz"),
        (["set", "a", "t", "--cron", "99 * * * *"], 2, "once: --cron, minute: found '99'"),
        (["set", "a", "t", "--at", "soon"], 2, "once: --at: found 'soon'"),
        (["set", "a", "t", "--at", "2020-01-01T00:00"], 78, "once: schedule 'a': found 2019-12-31T23:00"),
        (["set", "a", "t", "--schedule", '{"type": "tide"}'], 2, "once: --schedule: schedule: found the type 'tide'"),
        (["set", "a", "t", "--every", "1d", "--tz", "Mars"], 78, "once: schedule 'a': tz: found 'Mars'"),
        (["set", "a", "t", "--every", "1h", "--args", "{}"], 78, "once: schedule 'a': args: found {}, expected a list"),
        (["set", "a", "t", "--every", "1h", "--once", "{"], 2, "once: --once: found '{', expected JSON"),
        (["set", "a", "t", "--every", "1h", "--once", '{"grce": 1}'], 78, "once: beat entry 'a', option 'once'"),
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


def test_one_that_cant_be_read_is_named_and_the_others_are_shown(run, schedules, redis_server) -> None:
    """List and export end with 65, and apply changes nothing where it would have to read it."""
    for name in ("bad", "good", "worse"):
        schedules.set(name, task="proj.work", schedule=60)
    with redis_server.client() as client:
        for name in ("bad", "worse"):
            client.hset(schedules._store.keys.of_entry("def", name), "text", '{"v":1}')
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

PAST = '{"type": "one-off", "at": "2020-01-01T00:00:00.000000Z"}'


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "schedules: the JSON can't be read"),
        pytest.param("[" * 100_000, "schedules: the JSON can't be read", id="deep"),
        ("[]", "schedules: found [], expected an object with 'v': 1 and 'schedules'"),
        ('{"v": 2, "schedules": {}}', "schedules: found {'v': 2"),
        ('{"v": 1, "schedules": []}', "schedules: found [], expected an object: name"),
        ('{"v": 1, "schedules": {"a": {}, "a": {}}}', "schedules: the JSON can't be read: 'a' stands there twice"),
        ('{"v": 1, "schedules": {"": {}}}', "name of a schedule: found ''"),
        ('{"v": 1, "schedules": {"a": []}}', "schedule 'a': found [], expected an object with task"),
        ('{"v": 1, "schedules": {"a": {"task": "t"}}}', "schedule 'a': schedule: found None"),
        (
            '{"v": 1, "schedules": {"a": {"task": "t", "schedule": {"type": "interval", "seconds": 1}, "paused": 1}}}',
            "schedule 'a', paused: found 1",
        ),
        (
            '{"v": 1, "schedules": {"a": {"tsk": "t"}}}',
            "schedule 'a': definition: unknown field 'tsk' (did you mean 'task'?)",
        ),
        (
            '{"v": 1, "schedules": {"static": {"task": "t", "schedule": {"type": "interval", "seconds": 1}}}}',
            "schedule 'static': beat_schedule has an entry of that name",
        ),
        (
            '{"v": 1, "schedules": {"a": {"task": "t", "schedule": ' + PAST + "}}}",
            "schedule 'a': found 2020-01-01T00:00:00.000000Z, which is past",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_changes_nothing(run: Run, schedules: Schedules, text: str, said: str) -> None:
    """All of it is checked first: one wrong schedule, and none is set."""
    if text.startswith('{"v": 1, "schedules": {"'):
        good = '"0": {"task": "t", "schedule": {"type": "interval", "seconds": 1}}, '
        text = text.replace('{"v": 1, "schedules": {', '{"v": 1, "schedules": {' + good)
    log = run("apply", "-f", "-", "-y", typed=text, exit_code=os.EX_CONFIG).output
    assert log.startswith(f"once: {said}")
    assert log.count("\n") == 1
    assert list(schedules.list()) == []


class Interrupted(Schedules):
    """A client that lets something happen right before it sets a name."""

    before: tuple[str, Callable[[], None]] = ("", lambda: None)
    after: tuple[str, Callable[[], None]] = ("", lambda: None)

    def put(self, wanted: Wanted, *args: Any, **given: Any) -> Any:
        at, happens = self.before
        if wanted.name == at:
            self.before = ("", happens)
            happens()
        made = super().put(wanted, *args, **given)
        at, happens = self.after
        if wanted.name == at:
            self.after = ("", happens)
            happens()
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
    interrupted.before = ("c", lambda: schedules.set("c", task="proj.work", schedule=30) and None)
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


def test_a_task_that_the_app_doesnt_know_is_named(run: Run, schedules: Schedules) -> None:
    """It is set all the same; the output for programs stays as it is."""
    said = run("set", "report", "proj.wrok", "--every", "1h", "--json")
    assert json.loads(said.stdout)["task"] == "proj.wrok"
    assert said.stderr == "once: this app doesn't know the task 'proj.wrok' (did you mean 'proj.work'?)\n"
    exported = run("export").output
    schedules.delete("report")
    said = run("apply", "-f", "-", "--yes", typed=exported)
    assert said.stdout.endswith("1 applied.\n")
    assert said.stderr.startswith("once: this app doesn't know the task 'proj.wrok'")
    assert run("set", "report", "proj.work", "--every", "1h").stderr == ""


def test_what_another_has_changed_since_is_not_taken_back(interrupted: Interrupted, schedules: Schedules) -> None:
    """It is named, and everything else is taken back; what another has deleted stays deleted."""

    def happens() -> None:
        schedules.delete("a")
        schedules.pause("b")
        schedules.set("d", task="proj.work", schedule=30)

    interrupted.before = ("d", happens)
    with pytest.raises(NotAppliedError) as error:
        apply(interrupted, compare(interrupted, read_file(FILE)))
    assert str(error.value).startswith("not all is applied: ")
    assert str(error.value).endswith("except 'b' (another has changed it since), 'a' (another has changed it since)")
    assert standing(schedules) == {"b": (90, True), "c": (60, False), "d": (30, False), "pruned": (60, False)}


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_answer_that_is_lost(interrupted: Interrupted, schedules: Schedules, carried_out: bool) -> None:
    """Whether Redis had carried out the last one or not: it is as it was, too."""

    def happens() -> None:
        raise StoreUnavailableError("Redis: no answer")

    setattr(interrupted, "after" if carried_out else "before", ("c", happens))
    if carried_out:
        interrupted.before = ("", happens)
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
        away.before = ("c", server.kill)
        with pytest.raises(NotAppliedError) as error:
            apply(away, edits)
    said = str(error.value)
    assert said.startswith("not all is applied: Redis: ")
    assert [name for name in "abcd" if f"'{name}' (perhaps: Redis: " in said] == ["a", "b", "c"]
