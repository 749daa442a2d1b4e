"""Promises as a table: what is done, one step after another, and what each step is answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from celery_once_beat.store import Heartbeat, Store, codec, raised


def promises(table: str) -> list[Any]:
    """Parameters of a test: settings and steps of each promise. One begins with ``promise | name=value …``.

    Its steps follow, indented, with a semicolon or a new line between two.
    """
    found = re.findall(r"^(\S.*?) \|(.*)\n((?:  .*\n)+)", table, re.MULTILINE)
    return [
        pytest.param(dict(word.split("=") for word in given.split()), re.split(r"[;\n]\s*", steps.strip()), id=promise)
        for promise, given, steps in found
    ]


def play(steps: list[str], do: Callable[..., str], plain: Mapping[str, str]) -> None:
    """Do each: ``verb word … = answer``. Without an answer it is the verb's in ``plain``, or doesn't matter."""
    for step in steps:
        asked, equals, expected = step.partition(" =")
        verb, *words = asked.split()
        answer = do(verb, *words)
        if equals or verb in plain:
            assert answer == (expected.strip() if equals else plain[verb]), f"{step}, of {steps}"


def heard(store: Store, beat: str) -> Heartbeat:
    """A beat says that it lives; the server's time and who lives."""
    return raised(store.overdue(beat, codec.EPOCH, 0).heartbeat)
