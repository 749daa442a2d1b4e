"""What an entry may set, which of the windows that have passed run, and by what a definition is known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st
from zone_files import other_rules

from celery_once_beat.errors import SettingError
from celery_once_beat.rules import fingerprint, in_zone, plain_zone, same_definition, zone_rules
from celery_once_beat.rules import policy as policy_module
from celery_once_beat.rules.checks import app_findings
from celery_once_beat.rules.policy import EntryPolicy, Step, Timing, next_steps
from celery_once_beat.schedules import every
from celery_once_beat.schedules.definition import _write
from celery_once_beat.schedules.periods import LeftOut, _apart
from celery_once_beat.settings import Settings

SETTINGS = Settings(redis_url="redis://h")
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
ANCHOR = datetime(2026, 1, 1, 5, tzinfo=timezone.utc)


def of(once: Any = None, for_task: Any = None, settings: Settings = SETTINGS) -> EntryPolicy:
    return EntryPolicy.of("nightly", once, for_task, settings)


# -- what an entry may set


def test_an_entry_that_says_nothing_gets_the_settings() -> None:
    """Without an option and without a task that is known here, the app's settings count."""
    assert of() == of({}) == of(None, SimpleNamespace())
    found = of()
    for name in ("catch_up", "grace", "max_catch_up", "tolerance", "start_timeout", "max_attempts"):
        assert getattr(found, name) == getattr(SETTINGS, name)
    assert (found.recover, found.anchor, found.tracked) == (True, None, None)
    assert (found.retry_failed_after, found.overlap, found.spread) == (None, None, 0.0)


@pytest.mark.parametrize(("key", "value"), [("anchor", ANCHOR), ("tracked", False), ("overlap", "buffer_all")])
def test_what_an_entry_sets_counts_for_it(key: str, value: Any) -> None:
    """The option wins over the setting, and touches nothing else."""
    assert getattr(of({key: value}), key) == value
    assert replace(of({key: value}), **{key: getattr(of(), key)}) == of()


def test_a_limit() -> None:
    """The entry's goes before its task's; either is one that the app has, and the error says what there is."""
    known = replace(SETTINGS, limits={"reports": 3, "mails": 1})
    limited = SimpleNamespace(once_limit="mails")
    assert of({"limit": "reports"}, limited, known).limit == "reports"
    assert of({}, limited, known).limit == "mails"
    assert of({}, None, known).limit is None
    with pytest.raises(
        SettingError,
        match=r"beat entry 'nightly', once\['limit'\]: found 'report', expected a name in once_beat_limits, which has "
        r"'mails', 'reports'.*did you mean 'reports'",
    ):
        of({"limit": "report"}, None, known)
    with pytest.raises(SettingError, match=r"'nightly', once_limit of its task: found 'mails', .* which has none"):
        of({}, limited)


@pytest.mark.parametrize(
    ("name", "once", "of_task", "setting", "found"),
    [
        ("grace", {}, ..., 60.0, 60.0),
        ("grace", {"grace": None}, ..., 60.0, None),  # None is a value: this entry's windows never get too old
        ("max_attempts", {}, 5, 3, 5),
        ("max_attempts", {}, None, 3, 3),
        ("max_attempts", {"max_attempts": 7}, 5, 3, 7),
        ("recover", {}, None, False, False),
        ("recover", {}, True, False, True),
        ("recover", {}, False, True, False),
    ],
)
def test_an_option_wins_over_its_task_and_a_task_over_the_settings(
    name: str, once: Any, of_task: Any, setting: Any, found: Any
) -> None:
    """The nearest to the entry counts; a task's None leaves it to the app."""
    mine = None if of_task is ... else SimpleNamespace(**{f"once_{name}": of_task})
    assert getattr(of(once, mine, replace(SETTINGS, **{name: setting})), name) == found


@pytest.mark.parametrize("name", ["max_attempts", "recover", "deadline", "pause_after_failures", "on_failure"])
def test_what_a_task_says_is_checked_with_its_entry(name: str) -> None:
    """Its attribute may be a property. Else the load of all entries would fail in each tick."""
    with pytest.raises(SettingError, match=rf"beat entry 'nightly', once_{name} of its task: found <object"):
        of(None, SimpleNamespace(**{f"once_{name}": object()}))


@pytest.mark.parametrize(("key", "hint"), [("catchup", " (did you mean 'catch_up'?)"), (("a",), ""), ("qqq", "")])
def test_an_unknown_key_is_an_error_with_a_hint(key: str, hint: str) -> None:
    """It names entry and key, and says what was probably meant."""
    with pytest.raises(SettingError, match=rf"'nightly'.*{re.escape(f'unknown key {key!r}{hint}')}.*anchor"):
        of({key: 1})


_NO_SECONDS = ["5", -1, True, float("nan"), []]
WRONG = [
    *(("catch_up", value) for value in ("", "newest", None, True, 1)),
    *(("grace", value) for value in _NO_SECONDS),
    *(("anchor", value) for value in ("2026-01-01T00:00", "today", 5, ANCHOR.replace(tzinfo=None), ANCHOR.date())),
    *(("tz", value) for value in ("Europe/Berlni", "", "../etc", 5, timezone(timedelta(hours=1)))),
    *(("tracked", value) for value in (0, 1, "yes", None)),
    *(("spread", value) for value in (*_NO_SECONDS, None)),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=map(repr, WRONG))
def test_a_wrong_value_is_named(key: str, value: Any) -> None:
    """The error names entry and key, what was found and what was expected."""
    with pytest.raises(SettingError, match=rf"'nightly', {re.escape(f'once[{key!r}]: found {value!r}')}.*expected"):
        of({key: value})


@pytest.mark.parametrize("once", ["catch_up", 5, True, ["catch_up"], [("catch_up", "all")]])
def test_an_option_that_is_no_dict_is_named(once: Any) -> None:
    """Also one that looks nearly like it."""
    with pytest.raises(SettingError, match=r"'nightly', option 'once': found .*, expected a dict"):
        of(once)


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


def test_a_step_carries_what_is_missed_before_it() -> None:
    """The windows that a claim passes over go with it, in order."""
    due = ago(400, 300, 200, 5)
    first, second = next_steps(due, NOW, limits(catch_up="all", max_catch_up=1))
    assert first == Step(due[2], True, (due[0], due[1]), 2)
    assert second == Step(due[3], True)


def test_only_the_newest_missed_are_listed() -> None:
    """All are counted; of an outage's thousands the newest are named, since older leases have ended."""
    due = ago(*range(100, 5100))
    (step,) = next_steps(due, NOW, limits(catch_up="none"))
    assert step.missed_count == 5000
    assert step.missed == tuple(due[-len(step.missed) :])
    assert len(step.missed) == policy_module._MOST_LISTED


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
    "one window": ("t", OneOff(30, app=UTC), None),
    "another window": ("t", OneOff(31, app=UTC), None),
    "any number of windows": ("t", Often(30, app=UTC), None),
    "another task": ("u", schedule(30, app=UTC), None),
    "anchored": ("t", schedule(30, app=UTC), ANCHOR),
    "days": ("t", schedule(86_400, app=UTC), None),
    "days in another zone": ("t", schedule(86_400, app=BERLIN), None),
    "crontab": ("t", crontab(minute=0, hour=2, app=UTC), None),
    "crontab in another zone": ("t", crontab(minute=0, hour=2, app=BERLIN), None),
    "crontab, another minute": ("t", crontab(minute=1, hour=2, app=UTC), None),
    "crontab, another day": ("t", crontab(minute=0, hour=2, day_of_month=1, app=UTC), None),
    "crontab, another weekday": ("t", crontab(minute=0, hour=2, day_of_week=1, app=UTC), None),
    "crontab, another month": ("t", crontab(minute=0, hour=2, month_of_year=1, app=UTC), None),
    "crontab, every hour by number": ("t", crontab(minute=0, hour="0-23", app=UTC), None),
    "solar": ("t", solar("sunrise", 52.5, 13.4, app=UTC), None),
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
    assert fingerprint("t", schedule(timedelta(seconds=30), app=BERLIN), None) == fingerprint(*DEFINITIONS["interval"])
    assert fingerprint("t", crontab(minute=0, hour=2, app=again), None) == fingerprint(*DEFINITIONS["crontab"])
    assert fingerprint("t", Plain(app=UTC), None) == fingerprint("t", Plain(app=again), None)


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


# -- when a message runs

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
LATER = NOON + timedelta(seconds=90)
TASK = SimpleNamespace(expires=60)


class OddZone(tzinfo):
    """A zone that raises when it is asked."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        raise RuntimeError("this zone is broken")


class Unnamed(tzinfo):
    """An own zone; its text is an address."""

    def __init__(self, hours: int) -> None:
        self.offset = timedelta(hours=hours)

    def utcoffset(self, _: datetime | None) -> timedelta:
        return self.offset

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)


def timing(options: Any, task: object = None) -> Timing:
    return Timing.of("tick", options, task, ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("options", "task", "delay", "expires"),
    [
        ({}, None, 0, None),
        ({}, TASK, 0, 60),
        ({"expires": -1}, None, 0, 0),
        ({"expires": LATER}, None, 0, 90),
        ({"expires": "2026-11-22T12:01:30Z"}, None, 0, 90),
        ({"countdown": -7}, None, 0, None),
        ({"countdown": 200_000_000_000}, None, 2e11, None),
        ({"countdown": Fraction(1, 2), "eta": LATER}, None, 0.5, None),
        ({"eta": LATER}, None, 90, None),
        ({"eta": "2026-11-22T13:01:30"}, None, 90, None),
        ({"eta": NOON - timedelta(days=1)}, None, 0, None),
        ({"countdown": 0, "eta": ""}, None, 0, None),
    ],
)
def test_when_a_message_may_run_and_expires(options: Any, task: object, delay: float, expires: float | None) -> None:
    """Seconds from now; naive datetimes are in the app's zone, and the entry's options go before its task's."""
    found = timing(options, task)
    assert found.delay(NOON) == delay
    assert found.expires_after(NOON) == expires


def test_a_countdown_began_with_the_first_message() -> None:
    """One that is published again waits for what is left of it."""
    found = timing({"countdown": 30})
    left = [found.delay(NOON, NOON - timedelta(seconds=passed)) for passed in (0, 10, 40)]
    assert left == [30, 20, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["countdown"], r"options: found .*, expected a dict"),
        ({"headers": [("a", 1)]}, r"options\['headers'\]: found .*, expected a dict"),
        ({"countdown": float("inf")}, r"options\['countdown'\]: found inf, expected a number of seconds, at most"),
        ({"countdown": float("nan")}, r"options\['countdown'\]: found nan"),
        ({"countdown": 2**63}, r"options\['countdown'\]"),
        ({"countdown": 10**400}, r"options\['countdown'\]"),
        ({"countdown": "soon"}, r"options\['countdown'\]: found 'soon', expected a number of seconds"),
        ({"expires": 2**63 - 1}, r"options\['expires'\]"),
        ({"expires": "tomorrow"}, r"options\['expires'\]: found 'tomorrow', expected a datetime, or its text"),
        ({"eta": 5}, r"options\['eta'\]: found 5, expected a datetime"),
        ({"eta": datetime(2026, 1, 1, tzinfo=OddZone())}, r"options\['eta'\]"),
    ],
)
def test_what_can_not_be_is_refused(options: Any, named: str) -> None:
    """One line says which entry and option, what was found and what was expected."""
    with pytest.raises(SettingError, match=rf"^beat entry 'tick', {named}"):
        timing(options)


# -- what fingerprints have of a machine's time zone data

_SCRIPT = """
import json
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule
from celery_once_beat.beat.entries import Entries
from celery_once_beat.schedules import Period, at, between, cron, every, excluding
from celery_once_beat.settings import Settings

class Own(BaseSchedule):
    def remaining_estimate(self, last_run_at):
        raise NotImplementedError
    def __repr__(self):
        return "<own>"

def app_in(zone):
    app = Celery("elsewhere", set_as_current=False)
    app.conf.timezone = zone
    return app

app = app_in("Europe/Berlin")
utc = app_in("UTC")
entries = Entries("", Settings(redis_url="redis://h"), {})

def mark(when, once=None, app=app):
    when.app = app
    entry = ScheduleEntry(name="e", task="t", schedule=when, options={"once": once or {}}, app=app)
    return [entries.make("e", entry).fingerprint, entries.make("e", entry, "def:1:a").fingerprint]

print(json.dumps({
    "crontab": mark(crontab(hour=5)),
    "days": mark(schedule(86400)),
    "own": mark(Own()),
    "cron": mark(cron("0 5 * * *"), app=app),
    "every, tz": mark(every("1 d", tz="Europe/Berlin"), app=utc),
    "at": mark(at("2030-01-01 05:00", tz="Europe/Berlin"), app=utc)[:1],
    "between": mark(between(every(60), start="2030-07-01", tz="Europe/Berlin"), app=utc),
    "excluding": mark(excluding(every(60), [Period("2030-07-01", tz="Europe/Berlin")]), app=utc),
    "same: crontab in UTC": mark(crontab(hour=5), app=utc),
    "same: seconds": mark(schedule(60)),
}))
"""


def test_other_time_zone_data_makes_another_fingerprint(tmp_path: Path) -> None:
    """Of each schedule that follows the zone, also where people set it at run time, and of no other."""
    found = []
    for path in ("", other_rules(tmp_path, "Europe/Berlin", 2 * 3600)):
        env = {**os.environ, **({"PYTHONTZPATH": path} if path else {})}
        done = subprocess.run([sys.executable, "-c", _SCRIPT], env=env, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    here, there = found
    assert {name for name in here if not set(here[name]).isdisjoint(there[name])} == {
        name for name in here if name.startswith("same")
    }
    assert all(here[name] == there[name] for name in here if name.startswith("same"))


@pytest.mark.parametrize("when", [crontab(hour=5), schedule(86400)], ids=["crontab", "days"])
def test_a_zone_without_a_name_is_known_by_its_rules(when: crontab | schedule) -> None:
    """Else each beat would have a definition of its own, and each restart a new one: what was owed wouldn't run."""
    zones = [Unnamed(2), Unnamed(2), Unnamed(3)]
    found = [fingerprint("t", placed, None) + zone_rules(placed) for placed in (in_zone(when, zone) for zone in zones)]
    assert found[0] == found[1] != found[2]
    assert same_definition(found[0], found[2])
    assert not same_definition(found[0], f"f{found[0]}")


# -- rules of a line or two

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
IN_BERLIN = ZoneInfo("Europe/Berlin")


def test_pytzs_zone_is_computed_with_by_its_name() -> None:
    """A ``datetime`` that has it as its tzinfo would be minutes off."""
    zone = Unnamed(2)
    zone.zone = "Europe/Berlin"  # type: ignore[attr-defined]
    assert plain_zone(zone) is IN_BERLIN


def test_the_rules_of_a_zone_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of a thousand entries in a zone costs no more than one; a zone may have no hash."""
    asked: list[tzinfo] = []
    monkeypatch.setattr(policy_module, "changes", lambda zone: asked.append(zone) or [])
    monkeypatch.setattr(policy_module, "_rules", {})
    unhashed = type("Unhashed", (Unnamed,), {"__hash__": None})(2)
    for zone in (unhashed, ZoneInfo("America/Lima")):
        assert len({zone_rules(in_zone(crontab(minute=number % 60), zone)) for number in range(1000)}) == 1
    assert asked == [unhashed, ZoneInfo("America/Lima")]


def test_a_schedule_in_a_zone_has_its_app() -> None:
    """A user's own kind of crontab may ask it."""
    assert in_zone(crontab(app=UTC), IN_BERLIN).app is UTC


def test_only_whole_days_need_a_zone() -> None:
    """Others are the same instants everywhere."""
    assert [zone.key for zone in every("2d").in_zone(IN_BERLIN).zones()] == ["Europe/Berlin"]
    part = every("90 min")
    assert part.in_zone(IN_BERLIN) is part
    assert not part.zones()


def test_spans_that_touch() -> None:
    """Those of one name are one; another's is cut where the first one ends."""
    days = [T0 + timedelta(days=number) for number in range(4)]
    same = [LeftOut(days[0], days[1], "x"), LeftOut(days[1], days[2], "x")]
    assert _apart(same) == [LeftOut(days[0], days[2], "x")]
    other = [LeftOut(days[0], days[2], "x"), LeftOut(days[1], days[3], "y")]
    assert _apart(other) == [LeftOut(days[0], days[2], "x"), LeftOut(days[2], days[3], "y")]
    within = [LeftOut(days[0], days[3], "x"), LeftOut(days[1], days[2], "y")]
    assert _apart(within) == within[:1]


def test_order_makes_no_other_definition() -> None:
    """Neither that of an argument's names, nor that of a set in the text of a schedule."""
    assert _write({"b": 1, "a": 2}) == _write({"a": 2, "b": 1})
    prints = set()
    for members in ("{10, 20}", "{20, 10}"):
        kind = type("Own", (BaseSchedule,), {"__repr__": lambda self, members=members: f"<Own {members}>"})
        prints.add(fingerprint("task", kind(), None))
    assert len(prints) == 1


def test_apps_that_share_their_keys() -> None:
    """Two beats of one app may; a beat of which the app isn't known says nothing."""
    settings = Settings(redis_url="redis://localhost")
    assert not list(app_findings([("a", "shop"), ("b", "shop"), ("c", None)], settings))
    (found,) = app_findings([("a", "shop"), ("b", "till"), ("c", None)], settings)
    assert "beats of 2 apps" in found.found
    assert "till, as b" in found.found
