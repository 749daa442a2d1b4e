"""Entries: what a beat knows of each entry, which are due, and how they are spread."""

from __future__ import annotations

import itertools
import logging
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, chain, chord, group, signature
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_once_beat import OnceScheduler
from celery_once_beat.beat.entries import RETRY_AFTER, Entries
from celery_once_beat.beat.entry import BeatEntry
from celery_once_beat.beat.timetable import Earlier
from celery_once_beat.clock import steady
from celery_once_beat.errors import ScheduleError, SettingError
from celery_once_beat.rules import is_polled, next_start
from celery_once_beat.rules.policy import Step, spread_offset
from celery_once_beat.schedules import Definition, cron, excluding
from celery_once_beat.settings import Settings
from celery_once_beat.windows import starts_after

APP = Celery("tests", set_as_current=False)
SETTINGS = Settings(redis_url="redis://h")
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
TASK = SimpleNamespace(once_closes_windows=True, check_scheduled=lambda: None)
TASKS = {"proj.task": TASK}


@pytest.fixture(autouse=True)
def in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is due is looked for at once, however busy the machine is."""
    monkeypatch.setattr("celery_once_beat.beat.plan._SLICE", 3600.0)


class Weak(BaseSchedule):
    """Every minute, and broken when it is told to be."""

    broken = False

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        if self.broken:
            raise RuntimeError("no idea")
        last = last_run_at.astimezone(timezone.utc)
        return last.replace(second=0, microsecond=0) + MINUTE - self.now()


class Broken(Weak):
    """A schedule that can't say when it starts next."""

    broken = True


def entry(every: Any = 60.0, task: str = "proj.task", **options: Any) -> ScheduleEntry:
    when = schedule(every, app=APP) if isinstance(every, (int, float)) else every
    return ScheduleEntry(name="e", task=task, schedule=when, options=options, app=APP)


def rows_of(schedule_: dict[str, Any], beat: str = "beat-1", tasks: Any = TASKS) -> Entries:
    rows = Entries(beat, SETTINGS, tasks)
    rows.refresh(schedule_)
    return rows


def loaded(rows: Entries, cursor: datetime = NOW) -> Entries:
    """Give every row that has none this cursor, as the store would."""
    for row in rows.unloaded():
        rows.advance(row, cursor)
    return rows


def names(rows: Iterable[BeatEntry]) -> list[str]:
    return [row.name for row in rows]


def many(number: int, every: float = 60.0) -> dict[str, Any]:
    return {f"entry-{n}": entry(every) for n in range(number)}


# -- how much room they take


def test_an_entry_takes_less_than_a_kilobyte() -> None:
    """Beside Celery's own entry, and again once a window of it has passed: a beat has room for a million."""
    schedule_ = many(2000)
    rows_of(schedule_)  # whatever is kept for all of them
    tracemalloc.start()
    try:
        rows = loaded(rows_of(schedule_))
        assert tracemalloc.get_traced_memory()[0] < 1000 * len(rows)
        soon = NOW + MINUTE
        for row in rows.due(soon, len(rows)):
            rows.apply_claim(row, row.step(soon).start)
        assert tracemalloc.get_traced_memory()[0] < 1000 * len(rows)
    finally:
        tracemalloc.stop()


# -- which are due


def test_a_row_is_due_at_its_next_start_and_not_before() -> None:
    """The start after its cursor counts, to the microsecond."""
    rows = loaded(rows_of({"a": entry()}))
    assert rows.next_due() == NOW + MINUTE
    assert rows.due(NOW + MINUTE - timedelta(microseconds=1), 10) == []
    assert names(rows.due(NOW + MINUTE, 10)) == ["a"]
    assert rows.due(NOW + MINUTE, 10) == []


def test_each_beat_has_an_order_of_its_own_that_it_keeps() -> None:
    """Load splits by itself: beats go through the same burst in different orders, each always in the same."""
    orders = {}
    for beat in ("beat-1", "beat-2", "beat-3"):
        found = [names(loaded(rows_of(many(50), beat)).due(NOW + MINUTE, 50)) for _ in range(2)]
        assert found[0] == found[1]
        orders[beat] = found[0]
    assert len({tuple(order) for order in orders.values()}) == 3
    assert len({order[0] for order in orders.values()}) > 1


# -- changes of the schedule


@pytest.mark.parametrize(
    ("changed", "known", "loaded_at"), [(entry(90.0), None, 0), (entry(once={"max_attempts": 9}), NOW, 5)]
)
def test_what_a_changed_definition_keeps(changed: Any, known: datetime | None, loaded_at: int) -> None:
    """Of another schedule nothing is known, nor when it was loaded. Other limits are no later definition."""
    rows = loaded(rows_of({"a": entry(60.0)}))
    (old,) = rows
    old.progress.loaded_at = 5
    rows.refresh({"a": changed})
    (row,) = rows.unloaded()
    assert (row.cursor, row.progress.known, row.progress.loaded_at) == (None, known, loaded_at)
    assert (row.fingerprint == old.fingerprint) is (known is not None)
    assert (row.policy == old.policy) is (known is None)
    assert rows.due(NOW + 999 * MINUTE, 10) == []


def test_what_comes_later_counts_from_when_it_was_absent() -> None:
    """What is there from the start goes on from the store's cursor; so does what is only changed."""
    rows = rows_of({"a": entry()})
    assert rows.refresh({"a": entry(90.0), "b": entry()}, NOW) == {}
    a, b = rows.get("a"), rows.get("b")
    assert (a.counts_from, a.progress.absent_at) == (None, None)
    assert (b.counts_from, b.progress.absent_at) == (None, NOW)
    b.progress.loaded_at = 1
    assert rows.refresh({"a": entry(90.0)}, NOW + MINUTE) == {"b": b.fingerprint}
    rows.refresh({"a": entry(90.0), "b": entry()}, NOW + 2 * MINUTE)
    assert rows.get("b").progress.absent_at == NOW + 2 * MINUTE


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a", entry(once={"catchup": "all"})),
        ("", entry()),
        ("x" * 70_000, entry()),
        ("a\udc80", entry()),
        ("a", SimpleNamespace(task="proj.task", options=None)),
        ("a", SimpleNamespace(task=None, options=None, schedule=schedule(1))),
        ("a", SimpleNamespace(task="proj.task", options=["once"], schedule=schedule(1))),
        (7, entry()),
    ],
)
def test_a_wrong_entry_is_left_out_and_said_once(name: str, wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The others go on; it is named when it is first seen."""
    good = entry()
    rows = loaded(rows_of({name: wrong, "good": good}))
    rows.refresh({name: wrong, "good": good})
    assert rows.get(name) is None
    assert names(rows.due(NOW + MINUTE, 10)) == ["good"]
    assert [record.action for record in caplog.records] == ["entry_wrong"]  # type: ignore[attr-defined]


def test_untracked_entries_are_named_once_together(caplog: pytest.LogCaptureFixture) -> None:
    """Those whose task isn't an OnceTask or isn't known; what an entry says itself isn't questioned."""
    tasks = {**TASKS, "proj.plain": SimpleNamespace()}
    table = {
        "once": entry(),
        "plain": entry(task="proj.plain"),
        "unknown": entry(task="proj.unknown"),
        "accepted": entry(task="proj.plain", once={"tracked": False}),
        "insisted": entry(task="proj.unknown", once={"tracked": True}),
    }
    rows = rows_of(table, tasks=tasks)
    rows.refresh(table)
    (record,) = caplog.records
    assert record.entries == ["plain", "unknown"]  # type: ignore[attr-defined]
    tracked = {name: rows.get(name).tracked for name in table}
    assert tracked == {"once": True, "plain": False, "unknown": False, "accepted": False, "insisted": True}
    rows.refresh({**table, "another": entry(task="proj.plain")})
    assert caplog.records[-1].entries == ["another"]  # type: ignore[attr-defined]


# -- the plan of one row


def test_a_plan_is_dropped_when_another_beat_claimed() -> None:
    """What was to be passed over isn't the same any more; nobody else's windows are counted as missed."""
    rows = loaded(rows_of({"a": entry()}))
    now = NOW + 30 * MINUTE
    (row,) = rows.due(now, 10)
    step = row.step(now)
    assert (step.start, step.missed_count) == (now, 29)
    row.move(NOW + 10 * MINUTE)
    step = row.step(now)
    assert (step.start, step.missed_count, step.missed[0]) == (now, 19, NOW + 11 * MINUTE)
    row.move(NOW + 29 * MINUTE)
    assert row.step(now) == Step(now, True)


class Counted(schedule):
    """A second's grid that counts how often it is asked."""

    asked = 0

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        self.asked += 1
        return last_run_at + SECOND - self.now()


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_long_outage_is_looked_through_once(monkeypatch: pytest.MonkeyPatch, catch_up: str) -> None:
    """In slices, between which others have their turn; also where another beat claims a window meanwhile."""
    monkeypatch.setattr("celery_once_beat.beat.plan._SLICE", 0.0)  # one start at a time
    when, number = Counted(1, app=APP), 500
    rows = loaded(rows_of({"a": entry(when, once={"catch_up": catch_up, "max_catch_up": 10**6})}))
    now = NOW + number * SECOND
    (row,) = rows
    when.asked = 0
    slices = 0
    while (step := row.step(now)) is None:
        assert row.searching
        slices += 1
    assert slices >= number - 62, "what is on time runs anyway"
    first = 1 if catch_up == "all" else number
    assert step == Step(NOW + first * SECOND, True, step.missed, first - 1)
    for claimed in range(first, number + 1):
        row.move(NOW + claimed * SECOND)  # by this beat, or another one
        step = row.step(now)
        assert (step and step.start) == (NOW + (claimed + 1) * SECOND if claimed < number else None)
    assert when.asked <= 4 * number


def test_an_entry_is_remembered_for_thirty_days_or_three_intervals() -> None:
    """A yearly entry isn't forgotten between two windows, and one whose schedule fails can be loaded."""
    day = 86_400.0
    every = {"minute": 60.0, "week": 7 * day, "half a year": 182 * day, "broken": Broken(app=APP)}
    rows = rows_of({name: entry(each) for name, each in every.items()})
    found = {row.name: row.timetable.ttl(NOW) / day for row in rows}
    assert found["minute"] == found["week"] == found["broken"] == 30
    assert found["half a year"] >= 3 * 182


def test_an_entry_sets_its_time_zone() -> None:
    """Of Celery's crontab and of whole days; a schedule that names one keeps it. Another one is another definition."""
    nightly = crontab(minute=0, hour=2, app=APP)
    entries = Entries("b", SETTINGS, TASKS)
    marks = set()
    for when, tz, expected in (
        (nightly, None, "02 02:00"),
        (nightly, "Europe/Berlin", "02 01:00"),
        (nightly, ZoneInfo("Asia/Tokyo"), "01 17:00"),
        (schedule(86400.0, app=APP), "Asia/Tokyo", "01 15:00"),
        (cron("0 2 * * *", tz="Europe/Berlin"), "Asia/Tokyo", "02 01:00"),
        (cron("0 2 * * *"), "Asia/Tokyo", "01 17:00"),
        (schedule(30.0, app=APP), "Asia/Tokyo", "01 12:00"),
    ):
        made = entries.make("e", entry(when, once={"tz": tz}))
        assert f"{made.after(NOW):%d %H:%M}" == expected
        assert made.description.count("Europe/Berlin") + made.description.count("Asia/Tokyo") <= 1
        marks.add(made.fingerprint)
    assert len(marks) == 7
    assert "tz" not in vars(nightly) or nightly.tz is APP.timezone  # the user's own is as it was


def test_what_is_left_out_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that came later, or a machine that was slow: the entry runs, and continues from the store's cursor."""
    pytest.importorskip("icalendar")
    file = tmp_path / "holidays.ics"
    found = {"shut": entry(excluding(cron("0 2 * * *", tz="UTC"), file)), "open": entry(60.0)}
    rows = rows_of(found)
    assert rows.wrong["shut"].startswith(f"excluding: {file} ")
    file.write_text("BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\nEND:VCALENDAR\n")
    rows.retry_wrong(found)
    assert names(rows) == ["open"]  # not at once
    monkeypatch.setattr("celery_once_beat.beat.entries.steady", lambda: steady() + RETRY_AFTER)
    rows.retry_wrong(found)
    assert names(rows) == ["open", "shut"]
    assert not rows.wrong
    assert rows.get("shut").progress.absent_at is None


NEEDS_TRACKING = {"overlap": "buffer_all", "limit": "reports", "deadline": 900.0, "pause_after_failures": 5,
                  "on_failure": "proj.tell"}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), NEEDS_TRACKING.items())
def test_what_untracked_entries_cant_set(key: str, value: object) -> None:
    """Nobody would know when a window has ended: the error names the entry, what was found and what was expected."""
    once = {key: value}
    entries = Entries("beat", replace(SETTINGS, limits={"reports": 3}), TASKS)
    for task, tracked in (("proj.unknown", {}), ("proj.task", {"tracked": False})):
        source = entry(task=task, once={**once, **tracked})
        with pytest.raises(SettingError, match=rf"'e', once\['{key}'\]: found {value!r} on an untracked entry, exp"):
            entries.make("e", source)
    assert not entries.make("e", entry(task="proj.unknown", once={"overlap": "skip"})).tracked


# -- Celery's own deadline


@pytest.mark.parametrize(
    ("when", "runs"),
    [(crontab(), None), (cron("* * * * *"), None), (schedule(60), 11 * MINUTE)],
    ids=["crontab", "cron", "interval"],
)
def test_the_starting_deadline_limits_what_a_beat_catches_up_on(when: Any, runs: timedelta | None) -> None:
    """Of crontabs alone, and it ends nothing that waits in a queue: the store judges by grace."""
    when.app = APP
    entries = Entries("beat", replace(SETTINGS, cron_starting_deadline=600.0), TASKS)
    late = entries.make("e", entry(when, once={"catch_up": "all"}))
    late.move(NOW - 12 * MINUTE)
    step = late.step(NOW)
    assert (step.run, step.start) == (True, NOW - (runs or 10 * MINUTE))
    assert late.load_request("beat", NOW).policy.grace is None


# -- polled schedules


class Polled(schedule):
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(60, app=APP)
        self.answers = list(answers)
        self.asked: list[datetime] = []

    def is_due(self, last_run_at: datetime) -> Any:
        self.asked.append(last_run_at)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


NO_DATABASE = RuntimeError("no database")


def polled(*answers: Any, cursor: datetime = NOW, since: datetime = NOW) -> BeatEntry:
    found = Entries("beat", SETTINGS, TASKS).make("e", entry(Polled(*answers)))
    found.progress.since = since
    found.move(cursor)
    return found


def test_a_polled_schedule_is_asked_when_its_last_answer_said_so() -> None:
    """Once each time, with the newest window as its last run; a window starts when it is found due."""
    row = polled((False, 30), (False, None), (True, 60), (False, 0))
    assert row.next == NOW
    for at, step, again in (
        (NOW + SECOND, None, 30.0),
        (NOW + MINUTE, None, 300.0),
        (NOW + 7 * MINUTE, Step(NOW + 7 * MINUTE, True), 60.0),
        (NOW + 9 * MINUTE, None, 0.1),
    ):
        assert row.step(at) == step
        row.move(step.start if step else row.cursor)
        assert row.next == at + timedelta(seconds=again)
    assert row.when.asked == [NOW, NOW, NOW, NOW + 7 * MINUTE]
    window = row.window(NOW)
    assert (window.start, window.end) == (NOW, None)


def test_of_two_beats_that_poll_one_has_the_window_of_an_interval() -> None:
    """Also where they poll seconds apart, and where the answer doesn't look at the last run."""
    first, second = polled((True, 60)), polled((True, 60))
    assert first.step(NOW + SECOND) == Step(NOW + SECOND, True)
    first.move(NOW + SECOND)
    assert second.step(NOW + 4 * SECOND) == Step(NOW + 4 * SECOND, True)  # claimed from a cursor that is gone
    second.move(NOW + SECOND)
    assert second.next == NOW + 64 * SECOND
    second.move(NOW + 6 * SECOND)  # or the first one asked a little later, and its claim came before
    assert second.next == NOW + 66 * SECOND
    third = polled((True, 60), cursor=NOW + SECOND)  # begins just then
    assert third.step(NOW + 9 * SECOND) is None
    third.move(NOW + SECOND)
    assert third.next == NOW + 61 * SECOND
    assert third.step(NOW + 61 * SECOND) == Step(NOW + 61 * SECOND, True)


def test_a_beat_whose_clock_is_behind_waits_for_the_newest_window() -> None:
    """A window can't start before the one before it."""
    row = polled((True, 60), cursor=NOW + SECOND)
    assert row.step(NOW) is None
    assert row.when.asked == []


def test_a_polled_schedule_that_raises_is_named_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """In the beat's report, and in one line of its log however often it is tried."""
    caplog.set_level(logging.INFO, "celery_once_beat.beat.entries")
    rows = rows_of({"a": entry(Polled(NO_DATABASE, NO_DATABASE, (False, 30))), "b": entry(), "": entry()})
    left_out = {"": "expected a name of 1 to 65536 bytes"}
    assert rows.left_out() == left_out
    for tried in range(3):
        loaded(rows)
        assert rows.left_out() == ({"a": "RuntimeError('no database')", **left_out} if tried else left_out)
        for row in rows.due(NOW + SECOND, 10):
            with rows.isolate(row):
                assert row.step(NOW + SECOND) is None
                rows.advance(row, NOW)
        rows.end_rests(steady() + RETRY_AFTER)
    assert rows.left_out() == left_out
    actions = [record.action for record in caplog.records]  # type: ignore[attr-defined]
    assert actions == ["entry_wrong", "entry_broken", "entry_goes_on"]
    quiet = Entries("beat", replace(SETTINGS, failure_text="type"), TASKS)
    quiet.refresh({"": entry()})
    assert quiet.left_out() == {"": "its log says why"}, "an error's text may be private"


class OwnClock(schedule):
    """An interval that takes the time from elsewhere than ``self.now()``, as Celery lets it."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return last_run_at + self.run_every - datetime.now(timezone.utc)


class Jitter(schedule):
    """An interval that is another one each time."""

    _intervals = itertools.count(60)

    @property
    def run_every(self) -> timedelta:
        return timedelta(seconds=next(self._intervals))

    @run_every.setter
    def run_every(self, _: object) -> None:
        """As Celery sets it."""


def test_an_interval_that_is_computed() -> None:
    """It lies on no grid: it counts from the last run, as with a stock beat. The definition stays the same."""
    now = datetime.now(timezone.utc)
    rows = loaded(rows_of({"e": entry(Jitter(app=APP))}), now - 10 * MINUTE)
    (row,) = rows.due(now, 10)
    assert row.step(now) == Step(now, True)
    rows.apply_claim(row, now)
    assert now + MINUTE < row.next < now + 2 * MINUTE
    assert rows.adopt(row, entry(Jitter(app=APP)))


def test_which_types_are_polled() -> None:
    """Those with an is_due of their own, whatever else they have; no one-off, and none of Celery's or ours."""

    class Both(Weak):
        def is_due(self, last_run_at: datetime) -> Any:
            raise NotImplementedError

    class Clocked(Both):
        clocked_time = NOW

    class Every(schedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return super().remaining_estimate(last_run_at)

    assert all(map(is_polled, (Both(app=APP), Polled(), OwnClock(60, app=APP))))
    pure = Weak(app=APP), Clocked(app=APP), crontab(), schedule(60), Every(60, app=APP), cron("@daily"), object()
    assert not any(map(is_polled, pure))
    with pytest.raises(ScheduleError, match="is polled"):
        next_start(Polled(), NOW)


def test_a_row_without_an_end_still_names_its_window() -> None:
    """A window that is claimed has to run, also if its schedule can't say when the next one starts."""
    when = Weak(app=APP)
    rows = loaded(rows_of({"a": entry(when)}))
    (row,) = rows.due(NOW + MINUTE, 10)
    assert row.window(NOW + MINUTE).end == NOW + 2 * MINUTE
    when.broken = True
    window = row.window(NOW + 2 * MINUTE, attempt=2)
    found = (window.entry, window.start, window.end, window.attempt, window.tracked)
    assert found == ("a", NOW + 2 * MINUTE, None, 2, True)


def test_an_earlier_definition_that_can_not_say_when(caplog: pytest.LogCaptureFixture) -> None:
    """The one that took its place goes on, and the log says once that windows of its time don't run."""
    old, rows = rows_of({"e": entry(Broken())}).get("e"), rows_of({"e": entry()})
    (row,) = rows
    row.timetable.earlier = [Earlier(NOW + MINUTE, lambda: old)]
    loaded(rows)
    assert row.next == NOW + 2 * MINUTE
    rows.reload("e")
    loaded(rows, NOW + SECOND)
    assert row.next == NOW + 2 * MINUTE
    (said,) = (record.getMessage() for record in caplog.records)
    assert "an earlier version can't say when it starts, its windows don't run: " in said


# -- spread

T0 = datetime(2026, 11, 21, 12, 30, tzinfo=timezone.utc)
HOURLY = crontab(minute=0)


def test_each_start_is_the_schedules_and_the_offset() -> None:
    """Windows are as many as without it, each so much later; after one start comes the next."""
    made = rows_of({"tenant": entry(HOURLY, once={"spread": 600}), "plain": entry(HOURLY)})
    row, plain = made.get("tenant"), made.get("plain")
    offset = spread_offset("tenant", 600)
    assert offset > timedelta(0)
    assert len({spread_offset(f"tenant-{number}", 60.0) for number in range(100)}) > 90
    start, found = T0, []
    for _ in range(5):
        start = row.after(start)
        found.append(start - offset)
    assert found == list(starts_after(HOURLY, T0, T0 + timedelta(hours=5)))
    assert plain.after(T0) == next_start(HOURLY, T0)


def test_a_changed_spread_is_another_definition() -> None:
    """Beats that spread differently mustn't both claim; without it a definition is what it was before."""
    each = ({"spread": 60}, {"spread": 61}, {}, {"spread": 0})
    one, other, without, zero = (rows_of({"e": entry(HOURLY, once=once)}).get("e").fingerprint for once in each)
    assert len({one, other, without}) == 3
    assert without == zero


@given(st.text(max_size=50), st.floats(0, 1e6))
def test_an_offset_is_within_its_spread(name: str, spread: float) -> None:
    """From 0 up to the spread, in whole milliseconds."""
    offset = spread_offset(name, spread)
    assert timedelta(0) <= offset <= timedelta(seconds=spread)
    assert not offset.microseconds % 1000


@pytest.mark.parametrize("answer", [None, (True,), (True, "soon"), (True, float("nan")), NO_DATABASE])
def test_what_a_polled_schedule_says_wrongly_is_its_own_trouble(answer: Any) -> None:
    """The entry rests for it; the others go on."""
    rows = loaded(rows_of({"a": entry(Polled(answer)), "b": entry()}))
    (row,) = rows.due(NOW + SECOND, 10)
    with rows.isolate(row):
        row.step(NOW + SECOND)
    assert "no database" in row.trouble or "expected whether it is due, and seconds to wait" in row.trouble
    assert [each.name for each in rows.due(NOW + MINUTE, 10)] == ["b"]


# -- entries whose task is one of Celery's canvas, which no worker can execute as a task

CELERY = Celery("canvas", broker="memory://", set_as_current=False)
CELERY.conf.once_beat_redis_url = "redis://127.0.0.1:1/0"  # nothing asks it


def part(secret: str = "hidden") -> Any:
    return signature("proj.part", (secret,), app=CELERY)


CHAIN, GROUP, CHORD = chain(part(), part()), group(part(), part()), chord([part(), part()], part())
BUILDS = r"expected the name of a task of yours that builds and sends it: def nightly\(\): {}\(…\)\.apply_async\(\)"

WRONG = [
    (CHAIN, "found a chain, which isn't a task, " + BUILDS.format("chain")),
    (GROUP, "found a group, which isn't a task, " + BUILDS.format("group")),
    (CHORD, "found a chord, which isn't a task, " + BUILDS.format("chord")),
    ("celery.chain", "found a chain, which isn't a task, " + BUILDS.format("chain")),
    ("celery.group", "found a group, which isn't a task, " + BUILDS.format("group")),
    (part(), "found a signature of 'proj.part', expected that name, with args, kwargs and options beside it"),
    ({"task": 7}, "found {'task': 7}, expected the name of a task"),
]


@pytest.mark.parametrize(("task", "words"), WRONG)
def test_canvas_is_no_task(task: Any, words: str) -> None:
    """Beats leave such an entry out, and ``Schedules`` refuses it, with what to do; its arguments aren't shown."""
    CELERY.conf.beat_schedule = {"wrong": {"task": task, "schedule": 60}, "good": {"task": "proj.part", "schedule": 60}}
    scheduler = OnceScheduler(CELERY)
    scheduler.entries.refresh(scheduler.schedule)
    assert [entry.name for entry in scheduler.entries] == ["good"]
    found = scheduler.entries.wrong["wrong"]
    with pytest.raises(SettingError, match=words):
        raise SettingError(found)
    assert "hidden" not in found
    scheduler.close()
    with pytest.raises(SettingError, match=words):
        Definition.of(task, 60)


def test_a_row_that_rests_isnt_due_until_it_wakes() -> None:
    """It is asked for again from the store's cursor, after its time and not before."""
    rows = loaded(rows_of(many(2)))
    row, other = rows.due(NOW + MINUTE, 10)
    rows.requeue(other)
    rows.rest(row, "broken")
    assert row not in rows.unloaded()
    assert rows.next_due() == NOW + MINUTE, "the other one"
    rows.end_rests(steady() + RETRY_AFTER - 1)
    assert row not in rows.unloaded()
    rows.end_rests(steady() + RETRY_AFTER)
    assert rows.unloaded() == [row]
    assert row.progress.known == NOW
