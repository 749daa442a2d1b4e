"""What one beat does with the alerts that it takes, on a real store: which it sends, which it leaves, what they say."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from deliveries import heard
from stage import EVERY_MINUTE, MARK, Stage, nth

from celery_once_beat import OnceTask
from celery_once_beat.beat.entries import Entries
from celery_once_beat.beat.server_clock import ServerClock
from celery_once_beat.errors import UncertainWriteError
from celery_once_beat.features.alerts.beat import Part
from celery_once_beat.features.runtime.store import SetRequest, read_definitions, set_many
from celery_once_beat.store import SHARDS, Ending, Published, shard_of
from celery_once_beat.windows import format_instant

TASK = "proj.tell"
ONCE = {"deadline": 900.0, "on_failure": TASK}
LOGGER = "celery_once_beat.features.alerts.beat"


def work() -> None:
    """A task that nobody runs here."""


class Beat:
    """What a beat has to send alerts of a stage's entry. ``answers`` are its broker's; where none is left, SENT."""

    def __init__(self, stage: Stage, **once: Any) -> None:
        self.store, self.beat_id, self.clock, self.recovery = stage.store, "beat-1", ServerClock(), self
        app = self.app = Celery("tests", set_as_current=False, task_cls=OnceTask)
        for name in ("proj.task", TASK):
            app.task(work, name=name, shared=False)
        self.entries = Entries("beat-1", stage.store.settings, app.tasks)
        entry = ScheduleEntry("nightly", "proj.task", schedule=EVERY_MINUTE, options={"once": once or ONCE}, app=app)
        self.entries.refresh({"nightly": entry}, nth(0))
        self.sent: list[dict[str, Any]] = []
        self.answers: list[tuple[Published, str]] = []
        self.takes = 0.0
        self.unread = False
        self.alerts = Part(self)

    def publish_once(self, send: Any) -> tuple[Published, str]:
        assert send.func == self.app.tasks[TASK].apply_async
        self.sent.append(send.keywords["kwargs"])
        time.sleep(self.takes)
        return self.answers.pop(0) if self.answers else (Published.SENT, "")

    def find(self, windows: Any) -> dict[Any, Any]:
        return {} if self.unread else {each: self.entries.get(each.entry) for each in windows}

    def look(self) -> list[str]:
        """Look once; returns the starts of which the task was sent."""
        before = len(self.sent)
        self.alerts.after_sweep(SimpleNamespace(with_work=lambda _: range(SHARDS)), ())
        self.alerts.work()
        return [each["start"] for each in self.sent[before:]]


@pytest.fixture
def stage(redis_url: str, close_later: Callable[[Any], Any]) -> Stage:
    stage = close_later(Stage(redis_url))
    stage.load(**ONCE)
    return stage


def key(stage: Stage, what: str) -> str:
    return stage.store.keys.of_shard(what, shard_of("nightly"))


def fail(stage: Stage, *numbers: int, mark: str = MARK) -> list[str]:
    """These windows fail, and aren't late; returns their starts."""
    for number in numbers:
        stage.start = nth(number)
        stage.claim(since=nth(number - 1), mark=mark)
        stage.raw.delete(key(stage, "late"))
        stage.confirm()
        fence = stage.begin("A").fence
        stage.store.finish(Ending(stage.window, "A", fence, "failed", failure=f"number {number}"))
    return [format_instant(nth(number)) for number in numbers]


def left(stage: Stage) -> int:
    return int(stage.raw.xlen(key(stage, "alerts")))


def test_a_broker_that_is_away(stage: Stage) -> None:
    """Another beat sends what this one can't, at its next look: the entry, the start, how it ended and why."""
    starts = fail(stage, 1)
    beat, other = Beat(stage), Beat(stage)
    beat.answers = [(Published.UNSURE, "")]
    assert beat.look() == starts
    assert other.look() == starts
    assert other.sent == [{"entry": "nightly", "start": starts[0], "outcome": "failed", "error": "number 1"}]
    assert left(stage) == 0


@pytest.mark.parametrize(("answer", "tries", "others"), [("UNSURE", 1, 2), ("IMPOSSIBLE", 2, 0)])
def test_a_task_that_is_refused(stage: Stage, caplog, answer: str, tries: int, others: int) -> None:
    """By the broker: it isn't tried again for a while, and another's may take it; or it can't be made. Said once."""
    starts = fail(stage, 1, 2)
    beat, other = Beat(stage), Beat(stage)
    beat.answers = [(Published[answer], "no such exchange")] * 2
    with caplog.at_level(logging.ERROR, LOGGER):
        assert beat.look() == starts[:tries]
        assert beat.look() == []
    assert [record.action for record in caplog.records] == ["on_failure_unsendable"]
    assert sorted(other.look()) == starts[:others]


def test_a_task_that_a_beat_does_not_know(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """It is named once, as the entry is loaded."""
    beat = Beat(stage, on_failure="proj.typo")
    for _ in range(2):
        beat.alerts.on_made(beat.entries)
    assert caplog.text.count("this app doesn't know the task 'proj.typo'") == 1


def test_an_entry_that_is_paused(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """So is its definition, if it was set at run time. A log of orders that isn't ours is named, and stops nothing."""
    stage.raw.set("once:orders", "garbage", ex=600)
    set_many(stage.store, [SetRequest("nightly", "text")])
    (known,) = read_definitions(stage.store, ["nightly"])
    stage.load(mark=known.fingerprint, known=None, stored=True, pause_after_failures=1)
    stage.raw.hset(stage.entry_key, "cursor", format_instant(nth(0)))
    fail(stage, 1, mark=known.fingerprint)
    beat = Beat(stage, pause_after_failures=1)
    beat.entries.get("nightly").stored = True
    beat.look()
    (known,) = read_definitions(stage.store, ["nightly"])
    assert (known.paused, known.by, known.note[:25]) == (True, "pause_after_failures", "1 windows in a row failed")
    assert caplog.text.count("'once:orders' holds a string") == 1
    assert left(stage) == 0


@pytest.mark.parametrize("lacks", ["the task", "the entry", "to read it"])
def test_a_beat_that_does_not_know_it(stage: Stage, lacks: str) -> None:
    """As in a rolling deploy: it leaves the alert to a beat that does."""
    starts = fail(stage, 1)
    beat, other = Beat(stage, deadline=900.0) if lacks == "the task" else Beat(stage), Beat(stage)
    if lacks == "the entry":
        beat.entries.refresh({}, nth(0))
    beat.unread = lacks == "to read it"
    for _ in range(3):
        assert beat.look() == []
    assert other.look() == starts


def test_no_replica_has_it(stage: Stage) -> None:
    """With once_beat_wait_replicas a failover could undo the end of which people are told: nobody is."""
    fail(stage, 1)
    careful = Stage(stage.url, wait_replicas=1)
    beat = Beat(careful)
    with pytest.raises(UncertainWriteError):
        beat.look()
    assert (beat.sent, left(stage)) == ([], 1)
    careful.close()


def test_what_is_not_ours(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign event is dropped, and a foreign key in the place of another shard's stream is named; each once."""
    starts = fail(stage, 1)
    others = stage.store.keys.of_shard("alerts", (shard_of("nightly") + 1) % SHARDS)
    stage.raw.set(others, "garbage", ex=600)
    stage.raw.xadd(key(stage, "alerts"), {"garbage": "1"})
    beat = Beat(stage)
    with caplog.at_level(logging.ERROR, LOGGER):
        assert (beat.look(), beat.look()) == (starts, [])
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2, said
    assert "foreign data is dropped" in said[0]
    assert f"{others!r} holds a string, expected a stream" in said[1]
    assert left(stage) == 0


def test_why_it_is_late(stage: Stage) -> None:
    """As it is when a beat looks: it waits, it runs again, it ended since, or it is done and nothing is said."""
    beat = Beat(stage)
    stage.claim()
    stage.confirm()
    with heard() as sent:
        beat.look()
        fence = stage.begin("A").fence
        for again, begins in ((60.0, True), (None, False)):
            stage.store.finish(Ending(stage.window, "A", fence, "failed", again, failure="Boom"))
            stage.raw.zadd(key(stage, "late"), {stage.member: stage.now() - 1})
            beat.look()
            if begins:
                stage.overdue()
                stage.raw.zadd(key(stage, "late"), {stage.member: stage.now() - 1})
                beat.look()
                stage.take("beat-1", MARK)
                fence = stage.begin("A").fence
    late = [(each["state"], each["why"]) for _, each in sent]
    assert [state for state, _ in late] == ["published", "waiting", "overdue"]
    assert "no worker has begun it" in late[0][1]
    assert late[1][1].startswith("runs again by ")
    assert re.match("is to run again, began .*, after Boom$", late[2][1])
