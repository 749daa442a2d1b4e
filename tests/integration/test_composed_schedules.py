"""Composed schedules in real processes, and what the commands say of them."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from datetime import datetime, timezone

import pytest
from system import System

from celery_once_beat import once
from celery_once_beat.schedules import between, cron, every, excluding, union, write_schedule

WORK = "apps.once_app.work"
UTC = timezone.utc


@pytest.mark.long
def test_beats_run_them_and_audit_counts_what_is_left_out(system: System) -> None:
    """Each start once, with two beats; what is excluded is counted as that, and as nothing else."""
    when = excluding("1 s", cron("*/3 * * * * *", tz="UTC"))
    system.entries = {"tick": {"task": WORK, "stored": write_schedule(when), "options": {"once": {"catch_up": "all"}}}}
    system.pair()
    system.wait_done(6)
    (account,) = json.loads(system.once("audit", "--json"))["entries"]
    assert account["verdict"] == "balances", account
    assert account["excluded"] >= 2
    assert "missed" not in account["outcomes"]
    assert re.search(r"^tick .* done, \d+ excluded", system.once("audit"), re.MULTILINE)
    assert all(int(start[17:19]) % 3 for start in system.recorded())


@pytest.mark.long
def test_next_says_why_a_window_is_left_out(system: System) -> None:
    """By the name of the day; several in a row for one reason are one line."""
    nightly = excluding(cron("0 2 * * *"), {"2026-12-25": "Christmas Day"}, tz="Europe/Berlin")
    hourly = excluding(cron("0 * * * *"), [("2026-12-24T12:00", "2026-12-27T00:00")], tz="Europe/Berlin")
    system.entries = {
        "nightly": {"task": WORK, "stored": write_schedule(nightly)},
        "hourly": {"task": WORK, "stored": write_schedule(hourly)},
        "tokyo": {"task": WORK, "cron": "0 2 * * *", "options": {"once": {"tz": "Asia/Tokyo"}}},
    }
    asked = ("--from", "2026-12-24T00:00Z")
    lines = system.once("next", "nightly", "-n", "2", *asked).splitlines()
    assert [line.rstrip() for line in lines] == [
        "ENTRY    LOCAL TIME                 UTC",
        "nightly  2026-12-24 02:00:00+01:00  01:00:00Z",
        "nightly  2026-12-25 02:00:00+01:00  01:00:00Z  excluded: 25 December, Christmas Day",
        "nightly  2026-12-26 02:00:00+01:00  01:00:00Z",
    ]
    hours = system.once("next", "hourly", "-n", "12", *asked)
    assert re.search(r"2026-12-24 12:00:00\+01:00  11:00:00Z +excluded: 24 December \(12 windows\)", hours)
    assert re.search(r"2026-12-25 00:00:00\+01:00 .* excluded: 25 December \(24 windows\)", hours)
    assert json.loads(system.once("next", "nightly", "-n", "2", "--json", *asked))[1]["start"].startswith("2026-12-26")
    tokyo = system.once("next", "tokyo", "-n", "1", *asked)
    assert "2026-12-25 02:00:00+09:00" in tokyo


@pytest.mark.long
def test_what_leaves_out_everything_is_said_in_one_line(system: System) -> None:
    """By next, at once; by a beat it is asked on later, and the other entries go on."""
    nothing = excluding("1 s", every("1 s"))
    system.entries = {
        "nothing": {"task": WORK, "stored": write_schedule(nothing)},
        "tick": {"task": WORK, "every": 1.0},
    }
    shown = system.once("next", "nothing")
    assert re.search(r"once: entry 'nothing': excluding\(.*leaves out each start up to \d", shown), shown
    system.pair()
    system.wait_done(4)
    assert not system.recorded("nothing")
    assert "nothing" in system.once("status")


def test_keys_of_ones_own_have_their_windows(system: System) -> None:
    """One caller gets the window; where a schedule has never started, nobody does."""
    ended = between(union("1 s", cron("* * * * * *")), end="2025-12-31", tz="UTC")
    never = between("1 s", start="2999-01-01", tz="UTC")
    with ExitStack() as held:
        found = [held.enter_context(once("k", every=ended, url=system.store_url)) for _ in range(2)]
    assert [window is not None for window in found] == [True, False]
    assert found[0] is not None
    assert found[0].start == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
    with once("k2", every=never, url=system.store_url) as window:
        assert window is None
