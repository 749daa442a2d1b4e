"""Being told, with real beats and workers: late windows and why, ends that aren't done, entries that pause."""

from __future__ import annotations

import json
from typing import Any

import pytest
from processes import Proc, wait_until
from system import EVERY_SECOND, System, rare

from celery_once_beat import Schedules
from celery_once_beat.errors import SettingError
from celery_once_beat.windows import WindowKey, parse_instant

#: The task of the tests' app that is told of ends.
TELL = "apps.once_app.tell"


def tick(task: str = "work", args: Any = (), every: float = 1.0, **once: Any) -> dict[str, Any]:
    """One entry that sets these."""
    return {"tick": {"task": f"apps.once_app.{task}", "every": every, "args": list(args), "options": {"once": once}}}


def listener(system: System) -> Proc:
    """A worker of the queue into which the app routes what is told."""
    return system.worker("listener", extra_args=["-Q", f"{system.queue}-told"]).wait_ready()


def first(system: System, kind: str, timeout: float = 60) -> dict[str, Any]:
    return wait_until(lambda: system.ledger.read(kind), f"{kind} is said", timeout)[0]


@pytest.mark.long
def test_late_without_a_worker(system: System) -> None:
    """No worker consumes its queue, and it says so."""
    system.entries = tick(deadline=6.0)
    beat = system.beat()
    said = wait_until(lambda: [e for e in system.ledger.read("late") if "no worker has begun" in e["why"]], "late", 90)
    assert said[0]["state"] in ("published", "overdue")
    assert f"the queue '{system.queue}'" in said[0]["why"]
    beat.stop()


@pytest.mark.parametrize("point", ["beat.telling:KILL", "beat.before_told:KILL", "beat.told:KILL", "beat.telling:STOP"])
@pytest.mark.long
def test_a_beat_that_dies_while_it_tells(system: System, point: str) -> None:
    """Another beat tells what wasn't told; what was told perhaps is told again, under the same id."""
    system.entries = tick("ending", ["fails"], on_failure=TELL)
    listener(system)
    system.worker().wait_ready()
    first_beat = system.beat("beat1", kill_point=point)
    system.wait_fired()
    system.beat("beat2")
    wait_until(lambda: len(system.ledger.read("told")) >= 3, "the other beat tells", 90)
    if point.endswith("STOP"):
        first_beat.resume()
    system.store.set_paused("tick", paused=True)
    wait_until(lambda: not system.account().open, "every window has its outcome", 60)
    starts = set(system.starts())
    wait_until(lambda: {each["start"] for each in system.ledger.read("told")} == starts, "all are told", 60)
    told = system.ledger.read("told")
    ids = {each["start"]: {other["id"] for other in told if other["start"] == each["start"]} for each in told}
    assert all(len(each) == 1 for each in ids.values()), "who is told twice can tell"
    assert len(told) - len(starts) <= (1 if "before_told" in point else 0) + (10 if "STOP" in point else 0)


def asked(system: System, *words: str) -> tuple[int, str]:
    """What a probe is told."""
    probe = system.celery("once", "ping", "--entries", *words, name="probe")
    return probe.wait(120), probe.log


@pytest.mark.long
def test_a_probe_sees_it_without_a_beat(system: System) -> None:
    """Redis alone says what should have been claimed; what nobody claims since it is paused isn't late."""
    system.entries = {**tick(deadline=3.0), "free": {"task": "apps.once_app.work", "every": 1.0}}
    system.worker().wait_ready()
    beat = system.beat()
    system.wait_done(1)
    assert asked(system) == (0, "entries with a deadline: 1, late: none\n")
    beat.kill()
    system.count_as_gone(beat)
    code, said = wait_until(lambda: (found := asked(system))[0] and found, "it is late", 60)
    assert code == 1
    assert said.startswith("tick: 2")
    assert said.endswith(" is late: no beat has claimed it\n")
    report = json.loads(asked(system, "--json")[1])
    assert (report["entries"], [each["state"] for each in report["late"]]) == (1, ["unclaimed"])
    status = json.loads(system.once("status", "--json", exit_code=1))
    found = next(each for each in status["entries"] if each["entry"] == "tick")
    assert found["late"] == 1
    assert any(" late, first that of " in words for words in found["attention"])
    assert 'celery_once_beat_late_windows{entry="tick"} 1.0' in system.once("metrics")
    system.store.set_paused("tick", paused=True)
    assert asked(system)[0] == 0


def test_a_probe_without_a_deadline(system: System) -> None:
    """A probe that could never fail says so."""
    code, said = asked(system)
    assert code == 2
    assert "no entry has a deadline" in said


@pytest.mark.parametrize(
    ("how", "outcome", "error"),
    [
        ("fails", "failed", "ValueError: this task fails"),
        ("expires", "expired", "its message expired before a worker took it"),
        ("skips", "skipped", "another window of its entry was still running, or waited instead"),
        ("dies", "abandoned", "too many of its executions died"),
        ("dies once", "dropped", "its execution died, and it isn't to be recovered"),
        ("is revoked", "revoked", "its task was revoked"),
    ],
)
@pytest.mark.long
def test_each_end_is_told(system: System, how: str, outcome: str, error: str) -> None:
    """The task gets entry, start, outcome and error, once for each window that isn't done."""
    entry = tick(on_failure=TELL)["tick"]
    if how == "fails":
        entry.update(task="apps.once_app.ending", args=["fails"])
    elif how == "expires":
        entry["options"]["expires"] = 0.5
    elif how == "skips":
        entry.update(args=[8.0])
        entry["options"]["once"]["overlap"] = "skip"
    elif how.startswith("dies"):
        entry.update(task="apps.once_app.deadly", every=30.0, anchor=rare(30.0)["anchor"])
        entry["options"]["once"].update({"max_attempts": 1} if how == "dies" else {"recover": False})
    system.entries = {"tick": entry}
    system.check_law = False
    listener(system)
    if how not in ("expires", "is revoked"):
        system.worker(concurrency=2)
    system.beat()
    if how == "is revoked":
        (window,) = wait_until(lambda: [*system.account().open][:1] if system.store.account("tick") else [], "open", 60)
        system.store.close_window(WindowKey("tick", window), "worker", "revoked", 0)
    elif how == "expires":
        wait_until(lambda: system.waiting() >= 3, "messages wait", 60)
    told = first(system, "told", 90)
    assert (told["entry"], told["outcome"], told["error"]) == ("tick", outcome, error)
    assert told["start"].endswith("Z")
    assert parse_instant(told["start"])


def test_who_cannot_be_told(system: System) -> None:
    """An untracked entry that asks for it is left out, with what to do; a task that beat doesn't know is named."""
    system.entries = {
        **tick("plain", deadline=5.0),
        "other": {"task": "apps.once_app.work", "every": 1.0, "options": {"once": {"on_failure": "proj.typo"}}},
        "wrong": {"task": "apps.once_app.work", "every": 1.0, "options": {"once": {"deadline": "soon"}}},
    }
    beat = system.beat()
    beat.wait_log(r"entry 'tick' is left out: beat entry 'tick', once\['deadline'\]: found 5.0 on an untracked entry")
    beat.wait_log(r"once\['deadline'\]: found 'soon', expected a number of seconds, at least 1, or None")
    beat.wait_log(r"entry 'other', on_failure: this app doesn't know the task 'proj.typo'")


@pytest.mark.long
def test_a_schedule_set_at_run_time(system: System) -> None:
    """It has the three too; its pause stands in its definition, and outlives a change of it."""
    system.entries = {}
    listener(system)
    system.pair()
    schedules = Schedules(url=system.store_url)
    once = {"deadline": 2, "pause_after_failures": 2, "on_failure": TELL}
    asked_for = {"task": "apps.once_app.ending", "args": ("fails",), "options": {"queue": system.queue}}
    schedules.set("users/42", schedule=1.0, once=once, **asked_for)
    wait_until(lambda: schedules.get("users/42").paused, "it is paused", 60)
    found = schedules.get("users/42")
    assert found.note.startswith("2 windows in a row failed: ")
    first(system, "late")
    first(system, "told")
    schedules.set("users/42", schedule=2.0, once=once, **asked_for)
    assert schedules.get("users/42").paused
    schedules.resume("users/42")
    assert not schedules.get("users/42").paused
    with pytest.raises(SettingError, match=r"once\['on_failure'\]: found 7, expected the name of a task"):
        schedules.set("users/43", schedule=2.0, once={"on_failure": 7}, **asked_for)


@pytest.mark.long
def test_a_task_that_cannot_be_sent(system: System) -> None:
    """Why, in one line."""
    system.entries = tick("ending", ["fails"], on_failure="apps.once_app.no_arguments")
    system.worker().wait_ready()
    beat = system.beat()
    line = "the task 'apps.once_app.no_arguments' (on_failure of 'tick') can't be sent: "
    wait_until(lambda: f'{line}TypeError("no_arguments() got an unexpected keyword argument' in beat.log, "why", 60)
    wait_until(lambda: system.outcomes()["failed"] >= 4, "more have failed", 60)
    assert beat.log.count(line) == 1
    system.settle([beat])


@pytest.mark.long
def test_what_cannot_be_written_is_the_trouble_of_its_entry(system: System) -> None:
    """The log of orders is a key of another type: people are told all the same, once, and the beat goes on."""
    system.entries = {**tick("ending", ["fails"], pause_after_failures=1), "other": EVERY_SECOND["tick"]}
    with system.client() as client:
        client.set("once:orders", "garbage", ex=600)
    system.worker().wait_ready()
    beat = system.beat()
    first(system, "paused")
    system.wait_done(5, "other")
    assert "Redis can be used again" not in beat.log
    assert beat.log.count("'once:orders' holds a string") == 1
    assert len(system.ledger.read("paused")) == 1
