"""What an entry may set, and which of the windows that have passed run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_once_beat.errors import SettingError
from celery_once_beat.rules import policy as policy_module
from celery_once_beat.rules.policy import EntryPolicy, Step, fingerprint, next_steps
from celery_once_beat.settings import Settings

SETTINGS = Settings(redis_url="redis://h")
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
ANCHOR = datetime(2026, 1, 1, 5, tzinfo=timezone.utc)


def task(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def of(once: Any = None, for_task: Any = None, settings: Settings = SETTINGS) -> EntryPolicy:
    return EntryPolicy.of("nightly", once, for_task, settings)


# -- what an entry may set


def test_an_entry_that_says_nothing_gets_the_settings() -> None:
    """Without an option and without a task that is known here, the app's settings count."""
    assert of() == of({}) == of(None, task())
    found = of()
    for name in ("catch_up", "grace", "max_catch_up", "tolerance", "start_timeout", "max_attempts"):
        assert getattr(found, name) == getattr(SETTINGS, name)
    assert (found.recover, found.anchor, found.tracked) == (True, None, None)
    assert (found.retry_failed_after, found.overlap, found.spread) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("catch_up", "all"),
        ("grace", 5.0),
        ("max_catch_up", 7),
        ("start_timeout", 8.0),
        ("max_attempts", 9),
        ("anchor", ANCHOR),
        ("tracked", True),
        ("tracked", False),
        ("recover", False),
        ("retry_failed_after", 60.0),
        ("retry_failed_after", 0.0),
        ("overlap", "skip"),
        ("overlap", "buffer_one"),
        ("overlap", "buffer_all"),
        ("spread", 90.0),
    ],
)
def test_what_an_entry_sets_counts_for_it(key: str, value: Any) -> None:
    """The option wins over the setting, and touches nothing else."""
    assert getattr(of({key: value}), key) == value
    assert replace(of({key: value}), **{key: getattr(of(), key)}) == of()


def test_a_limit() -> None:
    """The entry's goes before its task's; either is one that the app has, and the error says what there is."""
    known = replace(SETTINGS, limits={"reports": 3, "mails": 1})
    limited = SimpleNamespace(once_limit="mails")
    assert EntryPolicy.of("nightly", {"limit": "reports"}, limited, known).limit == "reports"
    assert EntryPolicy.of("nightly", {}, limited, known).limit == "mails"
    assert EntryPolicy.of("nightly", {}, None, known).limit is None
    with pytest.raises(
        SettingError,
        match=r"beat entry 'nightly', once\['limit'\]: found 'report', expected a name in once_beat_limits, which has "
        r"'mails', 'reports'.*did you mean 'reports'",
    ):
        EntryPolicy.of("nightly", {"limit": "report"}, None, known)
    with pytest.raises(SettingError, match=r"'nightly', once_limit of its task: found 'mails', .* which has none"):
        EntryPolicy.of("nightly", {}, limited, SETTINGS)
    for wrong in (3, "a b", "", None, ["reports"]):
        with pytest.raises(SettingError, match=r"beat entry 'nightly', once\['limit'\]: found"):
            EntryPolicy.of("nightly", {"limit": wrong}, None, known)


@pytest.mark.parametrize(
    ("name", "once", "of_task", "setting", "found"),
    [
        ("grace", {}, ..., 60.0, 60.0),
        ("grace", {"grace": None}, ..., 60.0, None),  # None is a value: this entry's windows never get too old
        ("max_attempts", {}, ..., 3, 3),
        ("max_attempts", {}, 5, 3, 5),
        ("max_attempts", {}, None, 3, 3),
        ("max_attempts", {"max_attempts": 7}, 5, 3, 7),
        ("recover", {}, ..., False, False),
        ("recover", {}, None, False, False),
        ("recover", {}, True, False, True),
        ("recover", {}, False, True, False),
        ("recover", {"recover": False}, True, True, False),
        ("recover", {"recover": True}, False, True, True),
    ],
)
def test_an_option_wins_over_its_task_and_a_task_over_the_settings(
    name: str, once: Any, of_task: Any, setting: Any, found: Any
) -> None:
    """The nearest to the entry counts; a task's None leaves it to the app."""
    mine = None if of_task is ... else task(**{f"once_{name}": of_task})
    assert getattr(of(once, mine, replace(SETTINGS, **{name: setting})), name) == found


@pytest.mark.parametrize("name", ["max_attempts", "recover", "deadline", "pause_after_failures", "on_failure"])
def test_what_a_task_says_is_checked_with_its_entry(name: str) -> None:
    """Its attribute may be a property. Else the load of all entries would fail in each tick."""
    with pytest.raises(SettingError, match=rf"beat entry 'nightly', once_{name} of its task: found <object"):
        of(None, task(**{f"once_{name}": object()}))


@pytest.mark.parametrize(
    ("key", "hint"), [("catchup", "catch_up"), ("max_attempt", "max_attempts"), ("Grace", "grace"), ("achor", "anchor")]
)
def test_an_unknown_key_is_an_error_with_a_hint(key: str, hint: str) -> None:
    """It names entry and key, and says what was probably meant."""
    with pytest.raises(SettingError) as caught:
        of({key: 1})
    assert "'nightly'" in str(caught.value)
    assert f"unknown key {key!r} (did you mean {hint!r}?)" in str(caught.value)


@pytest.mark.parametrize("key", ["qqq", 5, None, ("a",), "leash"])
def test_an_unknown_key_like_no_other_is_an_error_that_lists_them(key: Any) -> None:
    """Whatever it is, also no text at all."""
    with pytest.raises(SettingError) as caught:
        of({key: 1})
    assert f"unknown key {key!r}" in str(caught.value)
    for known in ("catch_up", "grace", "max_catch_up", "start_timeout", "max_attempts", "anchor", "tracked"):
        assert known in str(caught.value)


@pytest.mark.parametrize("text", ["2026-01-01T02:00:00+01:00", "2026-01-01T01:00:00Z", "2026-01-01 01:00:00+00:00"])
def test_an_anchor_may_be_a_text(text: str) -> None:
    """Where options are kept as JSON there are no datetimes."""
    assert of({"anchor": text}).anchor == datetime(2026, 1, 1, 1, tzinfo=timezone.utc)


_NO_SECONDS = ["5", -1, True, float("nan"), []]
WRONG = [
    *(("catch_up", value) for value in ("", "newest", None, True, 1)),
    *(("grace", value) for value in _NO_SECONDS),
    *(("max_catch_up", value) for value in (-1, 1.0, "5", None, True)),
    *(("start_timeout", value) for value in (*_NO_SECONDS, None, 0)),
    *(("max_attempts", value) for value in (0, -1, 1.0, "5", None, True)),
    *(
        ("anchor", value)
        for value in ("2026-01-01", "2026-01-01T00:00", "today", 5, ANCHOR.replace(tzinfo=None), ANCHOR.date())
    ),
    *(("tz", value) for value in ("Europe/Berlni", "", "../etc", 5, timezone(timedelta(hours=1)))),
    *(("tracked", value) for value in (0, 1, "yes", None)),
    *(("recover", value) for value in (0, 1, "yes", None)),
    *(("retry_failed_after", value) for value in (*_NO_SECONDS, None)),
    *(("overlap", value) for value in ("queue", True, None)),
    *(("spread", value) for value in (*_NO_SECONDS, None)),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=map(repr, WRONG))
def test_a_wrong_value_is_named(key: str, value: Any) -> None:
    """The error names entry and key, what was found and what was expected."""
    with pytest.raises(SettingError) as caught:
        of({key: value})
    text = str(caught.value)
    assert "'nightly'" in text
    assert f"once[{key!r}]: found {value!r}" in text
    assert "expected" in text


@pytest.mark.parametrize("once", ["catch_up", 5, True, ["catch_up"], [("catch_up", "all")]])
def test_an_option_that_is_no_dict_is_named(once: Any) -> None:
    """Also one that looks nearly like it."""
    with pytest.raises(SettingError, match=r"'nightly', option 'once': found .*, expected a dict"):
        of(once)


def test_a_policy_is_frozen() -> None:
    """Rows compare policies; nobody changes one."""
    with pytest.raises(FrozenInstanceError):
        of().grace = 5  # type: ignore[misc]


# -- which windows run


def limits(**given: Any) -> EntryPolicy:
    return replace(of(), **given)


def ago(*seconds: float) -> list[datetime]:
    """Starts that lie so many seconds back, in order."""
    return sorted(NOW - timedelta(seconds=each) for each in seconds)


def claims(due: list[datetime], policy: EntryPolicy, look: int = 10**9) -> Iterator[Step]:
    """What a beat claims of what is due, until nothing is; it looks for so many starts at a time."""
    begin = known = 0
    while known < len(due) or begin < known:
        known = min(known + look, len(due))
        steps = next_steps(due[begin:known], NOW, policy, more=known < len(due))
        yield from steps
        begin = due.index(steps[-1].start) + 1 if steps else begin


def outcome(due: list[datetime], policy: EntryPolicy, look: int = 10**9) -> tuple[list[float], int]:
    """How late what runs is, in seconds and in the order of its runs, and how many are missed."""
    steps = list(claims(due, policy, look))
    runs = [(NOW - step.start).total_seconds() for step in steps if step.run]
    return runs, sum(step.missed_count for step in steps)


@pytest.mark.parametrize(
    ("late", "given", "runs", "missed"),
    [
        # nothing due
        ((), {}, [], 0),
        # on time: at most tolerance late; all run, in order
        ((0,), {}, [0], 0),
        ((60,), {}, [60], 0),
        ((60, 30, 0), {"catch_up": "none"}, [60, 30, 0], 0),
        ((60, 30, 0), {"catch_up": "latest"}, [60, 30, 0], 0),
        # latest: one where any is late, the newest that is due
        ((61,), {}, [61], 0),
        ((3600, 1800, 61), {}, [61], 2),
        ((3600, 1800, 30, 10), {}, [10], 3),
        ((61, 60), {}, [60], 1),
        # all: in order, the newest max_catch_up of them
        ((3600, 1800, 30), {"catch_up": "all"}, [3600, 1800, 30], 0),
        ((400, 300, 200, 100, 5), {"catch_up": "all", "max_catch_up": 2}, [200, 100, 5], 2),
        ((400, 300), {"catch_up": "all", "max_catch_up": 0}, [], 2),
        # none: no late one
        ((61,), {"catch_up": "none"}, [], 1),
        ((400, 300, 30), {"catch_up": "none"}, [30], 2),
        # older than grace: missed, whatever catch_up says
        ((400, 300, 200), {"catch_up": "all", "grace": 300.0}, [300, 200], 1),
        ((400, 300, 200), {"catch_up": "all", "grace": 100.0}, [], 3),
        ((400,), {"grace": 300.0}, [], 1),
        ((400, 300), {"grace": 300.0}, [300], 1),
        ((50, 20), {"grace": 30.0}, [20], 1),
        ((90, 40), {"grace": 30.0}, [], 2),
        # no tolerance: what isn't exactly on time is late
        ((10, 5, 0), {"tolerance": 0.0, "catch_up": "none"}, [0], 2),
        ((10, 5, 0), {"tolerance": 0.0}, [0], 2),
    ],
)
def test_which_windows_run(late: tuple[float, ...], given: dict[str, Any], runs: list[float], missed: int) -> None:
    """Of the windows that have passed, those that run by the entry's catch-up policy, and how many are missed."""
    assert outcome(ago(*late), limits(**given)) == (runs, missed)


def test_a_step_carries_what_is_missed_before_it() -> None:
    """The windows that a claim passes over go with it, in order."""
    due = ago(400, 300, 200, 5)
    first, second = next_steps(due, NOW, limits(catch_up="all", max_catch_up=1))
    assert first == Step(due[2], True, (due[0], due[1]), 2)
    assert second == Step(due[3], True)


def test_a_step_of_which_nothing_runs_is_missed_itself() -> None:
    """The newest of them moves the cursor, and is one of those that are missed."""
    due = ago(400, 300, 200)
    assert next_steps(due, NOW, limits(catch_up="none")) == [Step(due[2], False, tuple(due), 3)]


def test_only_the_newest_missed_are_listed() -> None:
    """All are counted; of an outage's thousands the newest are named, since older leases have ended."""
    due = ago(*range(100, 5100))
    (step,) = next_steps(due, NOW, limits(catch_up="none"))
    assert step.missed_count == 5000
    assert step.missed == tuple(due[-len(step.missed) :])
    assert len(step.missed) == policy_module._MOST_LISTED


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_long_outage_of_a_fast_schedule_is_worked_off(catch_up: str) -> None:
    """More windows than are looked at in one step: the same ones run as if all had been seen at once."""
    number = 2 * policy_module._MOST_MISSED_AT_ONCE + 3500
    due = ago(*range(61, 61 + number))
    runs, missed = outcome(due, limits(catch_up=catch_up, max_catch_up=700))
    expected = {"latest": 1, "all": 700, "none": 0}[catch_up]
    assert runs == [float(61 + expected - 1 - each) for each in range(expected)]
    assert missed == number - expected


def test_what_is_passed_over_is_claimed_while_more_is_looked_for() -> None:
    """The store knows how far it got; one late window is kept, so that it is still known that only the newest runs."""
    due = ago(*range(61, 61 + policy_module._MOST_MISSED_AT_ONCE + 1))
    assert next_steps(due[:-1], NOW, limits(), more=True) == []
    (step,) = next_steps(due, NOW, limits(), more=True)
    assert (step.start, step.run, step.missed_count) == (due[-2], False, len(due) - 1)


LATE = st.lists(st.integers(0, 300).map(float), max_size=40, unique=True)
POLICIES = st.builds(
    limits,
    catch_up=st.sampled_from(["latest", "all", "none"]),
    grace=st.none() | st.integers(0, 300).map(float),
    max_catch_up=st.integers(0, 12),
    tolerance=st.integers(0, 120).map(float),
)


@given(late=LATE, policy=POLICIES)
def test_every_window_runs_or_is_missed_exactly_once(late: list[float], policy: EntryPolicy) -> None:
    """The steps split what is due: in order, none left out, none twice."""
    due = ago(*late)
    seen: list[datetime] = []
    for step in claims(due, policy):
        assert step.missed_count == len(step.missed)
        seen += [*step.missed, step.start] if step.run else step.missed
    assert seen == due


@given(late=LATE, policy=POLICIES)
def test_the_policy_is_kept(late: list[float], policy: EntryPolicy) -> None:
    """On time: runs, unless past grace. Late: the newest that catch_up allows, none past grace."""
    runs, _ = outcome(ago(*late), policy)
    too_old = [each for each in late if policy.grace is not None and each > policy.grace]
    on_time = [each for each in late if each <= policy.tolerance]
    belated = sorted(each for each in late if each > policy.tolerance)
    allowed = belated[: policy.max_catch_up if policy.catch_up == "all" else 0]
    run = {min(late)} if policy.catch_up == "latest" and belated else {*on_time, *allowed}
    assert runs == sorted(run - {*too_old}, reverse=True)


@given(late=LATE, policy=POLICIES, look=st.integers(1, 6), most=st.integers(1, 6), steps=st.integers(1, 6))
def test_it_doesnt_matter_how_many_are_looked_at_in_one_step(
    late: list[float], policy: EntryPolicy, look: int, most: int, steps: int
) -> None:
    """The sizes of steps change nothing of what runs and what is missed."""
    expected = outcome(ago(*late), policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_module, "_MOST_MISSED_AT_ONCE", most)
        patch.setattr(policy_module, "_MOST_PLANNED", steps)
        assert outcome(ago(*late), policy, look) == expected


# -- fingerprints


def app_in(zone: str) -> Celery:
    app = Celery("tests", set_as_current=False)
    app.conf.timezone = zone
    return app


UTC, BERLIN = app_in("UTC"), app_in("Europe/Berlin")


class Weekly(BaseSchedule):
    """A user's own schedule, with a repr of its own."""

    def __init__(self, day: int) -> None:
        super().__init__(app=UTC)
        self.day = day

    def __repr__(self) -> str:
        return f"<weekly {self.day}>"


class Plain(BaseSchedule):
    """A user's own schedule with an object's address in its repr."""

    __repr__ = object.__repr__


class Often(schedule):
    """An interval of a user's own."""


class OneOff(schedule):
    """Its windows end with the first."""

    one_off = True


OneOff.__name__ = "Often"


DEFINITIONS: dict[str, tuple[str, Any, datetime | None]] = {
    "interval": ("t", schedule(30, app=UTC), None),
    "another interval": ("t", schedule(31, app=UTC), None),
    "one window": ("t", OneOff(30, app=UTC), None),
    "any number of windows": ("t", Often(30, app=UTC), None),
    "another task": ("u", schedule(30, app=UTC), None),
    "anchored": ("t", schedule(30, app=UTC), ANCHOR),
    "anchored elsewhere": ("t", schedule(30, app=UTC), ANCHOR + SECOND),
    "days": ("t", schedule(86_400, app=UTC), None),
    "days in another zone": ("t", schedule(86_400, app=BERLIN), None),
    "crontab": ("t", crontab(minute=0, hour=2, app=UTC), None),
    "crontab in another zone": ("t", crontab(minute=0, hour=2, app=BERLIN), None),
    "crontab, another minute": ("t", crontab(minute=1, hour=2, app=UTC), None),
    "crontab, another hour": ("t", crontab(minute=0, hour=3, app=UTC), None),
    "crontab, another day": ("t", crontab(minute=0, hour=2, day_of_month=1, app=UTC), None),
    "crontab, another weekday": ("t", crontab(minute=0, hour=2, day_of_week=1, app=UTC), None),
    "crontab, another month": ("t", crontab(minute=0, hour=2, month_of_year=1, app=UTC), None),
    "crontab, every hour": ("t", crontab(minute=0, hour="*", app=UTC), None),
    "crontab, every hour by number": ("t", crontab(minute=0, hour="0-23", app=UTC), None),
    "solar": ("t", solar("sunrise", 52.5, 13.4, app=UTC), None),
    "solar elsewhere": ("t", solar("sunrise", 52.6, 13.4, app=UTC), None),
    "solar, another event": ("t", solar("sunset", 52.5, 13.4, app=UTC), None),
    "own": ("t", Weekly(1), None),
    "own, another day": ("t", Weekly(2), None),
    "own, without a text": ("t", Plain(app=UTC), None),
    "odd task": ("t\udc80", schedule(30, app=UTC), None),
}


def test_a_fingerprint_differs_where_the_definition_does() -> None:
    """Task, kind of schedule, each of its fields, zone and anchor all count."""
    found = {name: fingerprint(*definition) for name, definition in DEFINITIONS.items()}
    assert len(set(found.values())) == len(found)
    assert all(text.isascii() and text.isalnum() for text in found.values())


def test_a_fingerprint_is_the_same_for_equal_definitions() -> None:
    """Another object, app object or order, a zone where it plays no part, an anchor's zone: nothing changes."""
    again = app_in("UTC")
    elsewhere = ANCHOR.astimezone(ZoneInfo("Europe/Berlin"))
    assert fingerprint("t", schedule(30, app=UTC), elsewhere) == fingerprint(*DEFINITIONS["anchored"])
    one, two = crontab(minute={0, 8}, app=UTC), crontab(minute={8, 0}, app=UTC)
    assert fingerprint("t", one, None) == fingerprint("t", two, None)
    assert fingerprint("t", schedule(30, app=again), None) == fingerprint(*DEFINITIONS["interval"])
    assert fingerprint("t", schedule(timedelta(seconds=30), app=BERLIN), None) == fingerprint(*DEFINITIONS["interval"])
    assert fingerprint("t", crontab(minute=0, hour=2, app=again), None) == fingerprint(*DEFINITIONS["crontab"])
    assert fingerprint("t", Plain(app=UTC), None) == fingerprint("t", Plain(app=again), None)
    assert fingerprint("t", Weekly(1), None) == fingerprint("t", Weekly(1), None)


_SCRIPT = """
from datetime import datetime, timezone
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery_once_beat.rules import fingerprint
app = Celery("elsewhere", set_as_current=False)
app.conf.timezone = "Europe/Berlin"
anchor = datetime(2026, 1, 1, 5, tzinfo=timezone.utc)
class Days(BaseSchedule):
    def __repr__(self):
        return f"<on {frozenset({'mon', 'wed', 'fri', 'sun'})}>"
for when in (
    schedule(30, app=app),
    schedule(86400, app=app),
    crontab(minute={0, 15, 30, 45}, hour=[2, 3], day_of_week="mon-fri", app=app),
    crontab(minute={8, 16, 0, 24, 32}, app=app),
    solar("sunrise", 52.5, 13.4, app=app),
    Days(app=app),
):
    print(fingerprint("proj.tasks.report", when, None), fingerprint("proj.tasks.report", when, anchor))
"""


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """Beats compare fingerprints across hosts: hash seeds and addresses play no part."""
    found = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert len(set(found.pop().split())) == 12


class Month(IntEnum):
    """As ``calendar.Month`` of Python 3.12."""

    MAY = 5


class Duration(timedelta):
    """A library's own."""


@pytest.mark.parametrize(
    "equal",
    [
        [crontab(month_of_year=[month], app=UTC) for month in (5, 5.0, Month.MAY)],
        [schedule(of(seconds=7), app=UTC) for of in (timedelta, Duration)],
    ],
)
def test_a_fingerprint_does_not_depend_on_what_was_asked_before(equal: list[Any]) -> None:
    """What is equal and written otherwise keeps its own: it must not change with other entries of the schedule."""
    found = []
    for order in (equal, equal[::-1]):
        policy_module._fingerprint.cache_clear()
        found.append({id(when): fingerprint("t", when, None) for when in order})
    assert found[0] == found[1]
    assert len({*found[0].values()}) == len(equal)


def test_a_fingerprint_is_the_one_that_earlier_versions_write() -> None:
    """Beats of two versions share entries: another text would take each for a changed definition."""
    cron = crontab(minute=0, hour="*/2", day_of_week="mon-fri", app=BERLIN)
    assert fingerprint("t", schedule(30, app=UTC), ANCHOR, 60.0) == "9d3cef39ae04b3ea"
    assert fingerprint("t", schedule(86_400, app=BERLIN), None) == "a896b64c25030b7b"
    assert fingerprint("t", cron, None) == "b5e7f2c76d0be7f6"


def test_an_anchor_that_the_clock_shows_twice_is_one_of_two_instants() -> None:
    """Python takes the two for equal."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert fingerprint("t", schedule(30, app=UTC), first) != fingerprint("t", schedule(30, app=UTC), second)
    anchors = [of({"anchor": anchor}).anchor for anchor in (first, second)]
    assert [anchor.hour for anchor in anchors if anchor] == [0, 1]
