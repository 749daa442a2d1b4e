"""What it may cost to read a definition and to ask it for a start, and which time zones it may name."""

from __future__ import annotations

import sys
import threading
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from celery_once_beat.errors import ScheduleError, SettingError, UndecidedError
from celery_once_beat.rules import budget, latest_start, next_start, read_zone, spend
from celery_once_beat.schedules import RRule, between, cron, every, excluding, read_schedule, union
from celery_once_beat.schedules.periods import Period

NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
MIDNIGHT = "2020-01-01T00:00:00+00:00"
#: Calls of functions within which each of these ends.
MOST_CALLS = 1_000_000


def daily(number: int, hours: float = 24) -> list[Period]:
    starts = [datetime(2026, 1, 1) + timedelta(minutes=29 * n) for n in range(number)]
    return [Period(each, each + timedelta(hours=hours), str(n), rule="FREQ=DAILY") for n, each in enumerate(starts)]


def never(minute: int) -> RRule:
    return RRule("DAILY", MIDNIGHT, bymonth=2, bymonthday=30, byhour=1, byminute=minute)


def nested() -> Any:
    when: Any = cron("* * * * *", tz="UTC")
    for hour in range(15):
        when = excluding(when, [Period("2026-11-26T12:00", f"2026-11-27T{hour:02}:00")])
    return when


COSTLY = {
    "each second of a day is gone through": lambda: RRule(
        "SECONDLY", MIDNIGHT, byhour=[0], byminute=[0], bysecond=[0], count=10_000
    ),
    "no day fits": lambda: union(*map(never, range(60))),
    "daily periods cover all": lambda: excluding(cron("* * * * *", tz="Europe/Berlin"), daily(50)),
    "a hundred daily events": lambda: excluding(cron("*/5 * * * *", tz="Europe/Berlin"), daily(100, hours=0.1)),
    "a thousand daily events": lambda: excluding(cron("*/5 * * * *", tz="Europe/Berlin"), daily(1000, hours=0.1)),
    "equal periods": lambda: excluding(cron("* * * * *", tz="UTC"), [Period("2026-01-01", rule="FREQ=DAILY")] * 5000),
    "many dates": lambda: excluding(
        cron("*/5 * * * *", tz="Europe/Berlin"), [date(2026, 1, 1) + timedelta(days=n) for n in range(0, 9999, 2)]
    ),
    "each level asks twice": nested,
    "all is left out": lambda: excluding(
        union(*(RRule("SECONDLY", MIDNIGHT, interval=n) for n in range(1, 150))), RRule("SECONDLY", MIDNIGHT)
    ),
    "many rules that count": lambda: read_schedule(
        {
            "type": "union",
            "of": [
                {"type": "rrule", "freq": "DAILY", "dtstart": MIDNIGHT, "count": 9_000 + n, "byminute": [n]}
                for n in range(50)
            ],
        }
    ),
}


@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY)
def test_a_question_ends_whatever_is_asked(make: Any) -> None:
    """With a start, with how far it got, or with a line that says what it costs."""
    calls = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > MOST_CALLS:
            raise TimeoutError("too many calls")

    sys.setprofile(count)
    try:
        start = next_start(make(), NOW)
    except UndecidedError as exc:
        start = exc.asked
    except (ScheduleError, ValueError) as exc:
        sys.setprofile(None)
        assert "steps to find, the most that one question may take" in str(exc)  # noqa: PT017
        start = None
    finally:
        sys.setprofile(None)
    assert start is None or start > NOW


def test_what_is_only_slow_to_write_down_has_its_starts() -> None:
    """Dozens of daily events, rules that count, and deep nests are answered."""
    assert next_start(COSTLY["a hundred daily events"](), NOW) == NOW + timedelta(minutes=10)
    each_second = COSTLY["each second of a day is gone through"]()
    assert next_start(each_second, NOW) == datetime(2026, 11, 27, tzinfo=NOW.tzinfo)
    assert next_start(nested(), NOW) == datetime(2026, 11, 27, 14, tzinfo=NOW.tzinfo)


def test_an_answer_does_not_depend_on_who_was_asked_before() -> None:
    """What one process remembers of earlier questions changes how far a question gets, never a start."""
    fresh, asked = (excluding(cron("*/7 * * * *", tz="Europe/Berlin"), daily(30, hours=0.2)) for _ in range(2))
    moment: datetime | None = NOW
    for _ in range(50):
        moment = next_start(asked, moment)  # type: ignore[arg-type]
    by_fresh = NOW
    for _ in range(50):
        by_fresh = next_start(excluding(*fresh.made_of()[0]), by_fresh)  # type: ignore[assignment]
    assert moment == by_fresh


def test_the_newest_start_is_looked_for_within_a_budget() -> None:
    """Also where everything is left out."""
    with pytest.raises(ScheduleError, match="steps to find"):
        latest_start(excluding("1 s", every("1 s")), NOW)


def test_a_budget_is_of_one_thread_and_of_one_question() -> None:
    """A question within another one spends the steps of that; another thread's are its own."""
    with pytest.raises(ScheduleError, match="more than 10,000 steps"), budget(10_000), budget(10**6):  # noqa: PT012
        spend(10_000)
        thread = threading.Thread(target=spend, args=(10**6,))
        thread.start()
        thread.join()
        spend(1)
    spend(10**9)  # nobody asks: nothing is counted


def test_a_question_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten microseconds of its thread's CPU time for each step that it may take."""
    monkeypatch.setattr("time.thread_time", lambda: now)
    now = 5.0
    with budget(100_000):
        now = 5.99
        spend(2_000)
        now = 6.01
        with pytest.raises(ScheduleError, match="more than 1 s of CPU time"):
            spend(2_000)


# -- time zones

OF_ONE_MACHINE = ["localtime", "Factory", "posixrules", "right/Europe/Berlin", "posix/Europe/Berlin", "LOCALTIME"]


@pytest.mark.parametrize("name", OF_ONE_MACHINE)
def test_a_zone_of_one_machine_is_refused_wherever_it_is_named(name: str) -> None:
    """Machines that differ in it would run everything twice."""
    refused = rf"found .*{name}.*, which isn't the same time zone on every machine"
    for read in (
        lambda: cron("0 2 * * *", tz=name),
        lambda: every("1 d", tz=name),
        lambda: between("1 h", start="2026-01-01", tz=name),
        lambda: excluding("1 h", "2026-01-01", tz=name),
        lambda: union("1 h", tz=name),
        lambda: Period("2026-01-01", tz=name),
    ):
        with pytest.raises(SettingError, match=refused):
            read()
    with pytest.raises(ValueError, match=refused):
        read_zone(name)


def test_a_zone_of_one_machine_that_is_an_object_is_refused() -> None:
    """As the app's timezone gives it to a crontab."""
    with open("/usr/share/zoneinfo/Europe/Berlin", "rb") as file:  # noqa: PTH123
        zone = ZoneInfo.from_file(file, key="localtime")
    with pytest.raises(SettingError, match="isn't the same time zone on every machine"):
        cron("0 2 * * *", tz=zone)
    app = Celery("once", set_as_current=False)
    app.timezone = zone  # type: ignore[misc]
    when = cron("0 2 * * *")
    when.app = app
    with pytest.raises(ScheduleError, match="isn't the same time zone on every machine"):
        next_start(when, NOW)


def test_a_list_that_holds_itself_is_refused() -> None:
    """As every other value that nothing can be left out by."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SettingError, match="excluding: found"):
        excluding("1 h", endless)
