"""Schedules and entries that raise, never start or never advance; that poll, leave days out, or know other zones."""

from __future__ import annotations

import json
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from processes import wait_until
from system import System
from zone_files import other_rules

from celery_once_beat import Schedules
from celery_once_beat.schedules import cron, excluding, write_schedule
from celery_once_beat.windows import parse_instant

#: Entries of ``apps.odd_app`` that define no window that can be run. What each is named with.
WRONG = {
    "raises": "is broken",
    "exits": "SystemExit(3)",
    "panics": "Panic('in C')",
    "unsayable for long": "<UnsayableError>",
    "each microsecond": "µs after a start, expected at least 1 ms",
    "hangs": "it took longer than 1 s",
    "hangs in is_due": "it took longer than 1 s",
    "no such field": "shedule",
    "anchor at the end": "anchor",
    "unreadable": "its message can't be made: RuntimeError(",
}
#: Those that are right, and never start in our time.
NEVER = ["solar", "far"]


@pytest.mark.long
def test_odd_entries_stop_no_other(system: System) -> None:
    """Each wrong entry is named once by each beat, with what is wrong; the right one runs, each window once.

    Those that never start are in order, and nothing is said of them.
    """
    system.worker(pool="solo").wait_ready()
    beats = [system.procs.start_beat("apps.odd_app", name=f"beat{n}", env=system.env()) for n in (1, 2)]
    for beat in beats:
        for name in WRONG:
            beat.wait_log(f"entry '{name}'")
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


@pytest.mark.long
def test_two_beats_that_poll(system: System, tmp_path: Path) -> None:
    """Each interval has one window, however many beats ask; it counts as claimed, and no other one is missed."""
    work = tmp_path / "work"
    system.check_law = False  # its schedule is known to the app alone; audit judges it below
    system.entries = {"tick": {"task": "apps.once_app.work", "polled": [str(work), 5.0]}}
    system.worker().wait_ready()
    beats = [system.beat("first")]
    wait_until(lambda: len(system.ledger.read("asked")) > 2, "it is asked each second", 60)
    assert not system.recorded()
    work.touch()
    system.wait_done(1)
    beats.append(system.beat("second"))
    system.wait_done(2)
    system.settle(beats)
    starts = sorted(event["start"] for event in system.ledger.read("start"))
    assert system.outcomes() == {"done": len(starts)}
    assert "Every account balances" in system.once("audit")
    instants = [parse_instant(start) for start in starts]
    assert min((b - a).total_seconds() for a, b in pairwise(instants)) >= 5.0


@pytest.mark.long
def test_beats_run_them_and_audit_counts_what_is_left_out(system: System) -> None:
    """Each start once, with two beats; what is excluded is counted as that, and as nothing else."""
    when = excluding("1 s", cron("*/3 * * * * *", tz="UTC"))
    system.entries = {
        "tick": {"task": "apps.once_app.work", "stored": write_schedule(when), "options": {"once": {"catch_up": "all"}}}
    }
    system.pair()
    system.wait_done(6)
    (account,) = json.loads(system.once("audit", "--json"))["entries"]
    assert account["verdict"] == "balances", account
    assert account["excluded"] >= 2
    assert "missed" not in account["outcomes"]
    assert re.search(r"^tick .* done, \d+ excluded", system.once("audit"), re.MULTILINE)
    assert all(int(start[17:19]) % 3 for start in system.recorded())


@pytest.mark.long
def test_beats_with_other_time_zone_data(system: System, tmp_path: Path) -> None:
    """The one that loaded last counts, and the other says why its own starts don't."""
    zone = "Europe/Berlin"
    when = cron("*/4 * * * * *", tz=zone)
    system.check_law = False  # this process computes the starts as the first beat does
    system.entries = {}
    with closing(Schedules(url=system.store_url)) as schedules:
        schedules.set("tick", task="apps.once_app.work", schedule=when)
    system.worker().wait_ready()
    first = system.beat("first")
    system.wait_done(2)
    system.beat("second", PYTHONTZPATH=other_rules(tmp_path, zone, 3602)).wait_ready()
    wait_until(lambda: "with other rules of its time zone" in first.log, "the first beat says what differs", 60)
    assert "time zones: beats know other rules of the zones of 'tick'" in system.once("doctor", exit_code=1)
    system.wait_done(3)
    starts = sorted(parse_instant(start).second % 4 for start in system.recorded())
    in_order = [parse_instant(start).second % 4 for start in sorted(system.recorded())]
    assert set(starts) == {0, 2}
    assert in_order == starts, "starts of both beats alternate"
