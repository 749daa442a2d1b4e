"""Composed schedules in real processes, and what the commands say of them."""

from __future__ import annotations

import json
import re
from datetime import timezone

import pytest
from system import System

from celery_once_beat.schedules import cron, excluding, write_schedule

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
