"""Schedules and entries that raise, never start, never advance, or start faster than anybody can run them."""

from __future__ import annotations

import re

import pytest
from processes import Proc
from system import System

pytestmark = pytest.mark.long

#: Entries of ``apps.odd_app`` that define no window that can be run. What each is named with.
WRONG = {
    "raises": "is broken",
    "exits": "SystemExit(3)",
    "asks": "another Redis is away",
    "panics": "Panic('in C')",
    "unsayable": "<UnsayableError>",
    "unsayable for long": "<UnsayableError>",
    "recursion": "deep",
    "zero": "doesn't advance",
    "backwards": "doesn't advance",
    "a number": "can't say when it starts next",
    "none": "can't say when it starts next",
    "a datetime": "can't say when it starts next",
    "due none": "is_due: found ",
    "due nan": "is_due: found ",
    "due true nan": "is_due: found ",
    "due words": "is_due: found ",
    "due triple": "is_due: found ",
    "each microsecond": "µs after a start, expected at least 1 ms",
    "each microsecond of its own": "µs after a start, expected at least 1 ms",
    "zero interval": "expected more than 0",
    "hangs": "it took longer than 1 s",
    "hangs in is_due": "it took longer than 1 s",
    "mute": "no name",
    "no schedule": "is left out",
    "no such field": "shedule",
    "no mapping": "is left out",
    "no task": "is left out",
    "options": "is left out",
    "anchor at the end": "anchor",
    "anchor nowhere": "anchor",
    "expires inf": "options['expires']: found inf, expected a number of seconds",
    "expires nan": "options['expires']: found nan, expected a number of seconds",
    "expires late": "options['expires']: found 9223372036854775807, expected a number of seconds",
    "expires huge": "options['expires']: found ",
    "expires soon": "options['expires']: found 'soon', expected a datetime",
    "expires nowhere": "options['expires']: found ",
    "expires list": "options['expires']: found [1], expected a number of seconds",
    "countdown inf": "options['countdown']: found inf, expected a number of seconds",
    "countdown words": "options['countdown']: found '5', expected a number of seconds",
    "eta number": "options['eta']: found 5, expected a datetime",
    "headers pairs": "options['headers']: found [('a', 1)], expected a dict",
    "headers words": "options['headers']: found 'a: 1', expected a dict",
    "unreadable": "its message can't be made: RuntimeError(",
}
#: Those that are right, and never start in our time.
NEVER = ["solar", "never", "in ten thousand years", "far", "due far", "due negative", "due in no time"]


def odd_beat(system: System, name: str, **env: str) -> Proc:
    return system.procs.start_beat("apps.odd_app", name=name, env=system.env(**env))


def wait_said(beat: Proc) -> None:
    """Wait until a beat has named each wrong entry."""
    for name in WRONG:
        beat.wait_log(f"entry '{name}'")


def test_odd_entries_stop_no_other(system: System) -> None:
    """Each wrong entry is named once by each beat, with what is wrong; the right one runs, each window once.

    Those that never start are in order, and nothing is said of them.
    """
    system.worker(pool="solo").wait_ready()
    beats = [odd_beat(system, f"beat{n}") for n in (1, 2)]
    for beat in beats:
        wait_said(beat)
    system.wait_done(8)
    for beat in beats:
        lines = [line for line in beat.log.splitlines() if re.match(r"\[.*(ERROR|WARNING|CRITICAL)/", line)]
        for name, said in WRONG.items():
            (line,) = [line for line in lines if f"entry '{name}'" in line]
            assert said in line
        assert not [line for line in lines if any(f"'{name}'" in line for name in NEVER)]
        assert "Traceback" not in beat.log
        assert not re.search(r"^\[CRITICAL\] is broken", beat.log, re.MULTILINE), "no line of its own"
    system.settle(beats)
    system.check_each_once()
    assert {event["entry"] for event in system.ledger.read("start")} == {"tick"}
