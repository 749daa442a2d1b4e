"""How spans of time and guesses are written, and how spans are read."""

from __future__ import annotations

from datetime import timedelta

import pytest

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
    ("seconds", "text"), [(30, "30.0 s"), (300, "5 min 0 s"), (-3, "-3.0 s"), (59.96, "1 min 0 s")]
)
def test_a_span_is_written(seconds: float, text: str) -> None:
    """In the two largest units."""
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
        "pwd=secret",
        "password='a secret'",
        'password="a secret" host=h',
        "PASSWORD = secret",
        "{'password': 'a secret', 'host': 'h'}",
    ],
)
def test_a_value_is_shown_without_a_password(text: str) -> None:
    """An entry that is left out shows what it raised, in its status and on the board, cut anywhere."""
    for value in (text, text.encode(), RuntimeError(text)):
        assert "sec" not in shown(value)
