"""How spans of time, guesses, times and schedules are written, and how spans are read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.cli.output import local, print_json
from celery_once_beat.schedules import OneOff, describe, every
from celery_once_beat.windows import parse_instant
from celery_once_beat.wording import did_you_mean, read_span, shown, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1m", 60), ("5 min", 300), ("2h", 7200), ("1d", 86400), (" 1.5 h ", 5400), ("1w", 604800)],
)
def test_a_span_is_read(text: str, seconds: float) -> None:
    """A number and a unit, with a blank between them or without."""
    assert read_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "m", "1", "1 month", "-1s", "1e3s", "٣s", "9" * 400 + "w"])
def test_what_is_no_span_isnt_guessed_at(text: str) -> None:
    """None: the caller says what it expected."""
    assert read_span(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "-3.0 s"), (59.96, "1 min 0 s"), (3599.7, "1 h 0 min"), (273600, "3 d 4 h")]
)
def test_a_span_is_written(seconds: float, text: str) -> None:
    """In the two units that matter, rounded without a 60 in the smaller one."""
    assert span(seconds) == text


def test_a_guess_is_written_as_the_caller_writes_names() -> None:
    """And there is none where nothing is like it."""
    assert did_you_mean("grce", ["grace", "anchor"], repr) == " (did you mean 'grace'?)"
    assert did_you_mean("grce", ["grace", "anchor"]) == " (did you mean grace?)"
    assert not did_you_mean("zzz", ["grace", "anchor"])


@pytest.mark.parametrize(
    "text",
    [
        "postgres://user:secret@h/x",
        "no: " + "x" * 52 + " postgres://u:secret@h",
        "password='a secret'",
        'password="a secret" host=h',
        "{'password': 'a secret', 'host': 'h'}",
    ],
)
def test_a_value_is_shown_without_a_password(text: str) -> None:
    """An entry that is left out shows what it raised, in its status and on the board, cut anywhere."""
    for value in (text, text.encode(), RuntimeError(text)):
        assert "sec" not in shown(value)


# -- on a terminal


def test_local_time() -> None:
    """In the zone that is asked for; the date only where it isn't today's there; a fraction where there is one."""
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 11, 21, 23, 30, tzinfo=timezone.utc)
    assert local(parse_instant("2026-11-21T23:00:00.000000Z"), berlin, now) == "00:00:00"
    assert local(parse_instant("2026-11-21T22:59:59.500000Z"), berlin, now) == "2026-11-21 23:59:59.5"
    assert local(parse_instant("2026-11-21T23:00:00.000000Z"), berlin) == "2026-11-22 00:00:00"
    assert local(None, berlin) == "-"


def test_json_holds_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor what turns the direction of a text; other letters stay as they are, and a program reads what was there."""
    value = {"a": "äöü 日本 \x1b[2J \x9b2J \x7f \u202e"}
    print_json(value)
    shown = capsys.readouterr().out
    assert "äöü 日本" in shown
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == value


class Tides(BaseSchedule):
    """One that doesn't say how it is written."""


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (schedule(timedelta(seconds=30)), "every 30 s"),
        (schedule(timedelta(days=7)), "every 7 d"),
        (schedule(timedelta(seconds=4.44)), "every 4.44 s"),
        (every("90 min"), "every 90 min"),
        (every("1 d", tz="UTC"), "every('1 d', tz='UTC')"),
        (crontab(minute="*/5", hour="1,3"), "*/5 1,3 * * *"),
        (solar("sunset", 48.1, 11.6), "sunset at latitude 48.1, longitude: 11.6"),
        (OneOff(datetime(2026, 1, 1, tzinfo=timezone.utc)), "2026-01-01T00:00:00.000000Z"),
        (Tides(), f"{__name__}.Tides"),
    ],
)
def test_a_schedule_in_words(when: object, text: str) -> None:
    """As people write it."""
    assert describe(when) == text


def test_an_hour_that_comes_twice() -> None:
    """When the clocks go back its times carry their offset; no other's do."""
    berlin = ZoneInfo("Europe/Berlin")
    assert local(parse_instant("2026-10-24T23:59:59.000000Z"), berlin) == "2026-10-25 01:59:59"
    assert local(parse_instant("2026-10-25T00:30:00.000000Z"), berlin) == "2026-10-25 02:30:00+02:00"
    assert local(parse_instant("2026-10-25T01:30:00.000000Z"), berlin) == "2026-10-25 02:30:00+01:00"
    assert local(parse_instant("2026-10-25T02:00:00.000000Z"), berlin) == "2026-10-25 03:00:00"
    assert local(parse_instant("2026-10-25T01:30:00.000000Z"), timezone.utc) == "2026-10-25 01:30:00"
