"""Composed schedules in real processes: our beats, a stock beat; and what the commands say of them."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from processes import wait_until
from system import System

from celery_once_beat import Schedules, once
from celery_once_beat.schedules import between, cron, every, excluding, union, write_schedule
from celery_once_beat.windows import starts_after

WORK = "apps.once_app.work"
UTC = timezone.utc
#: :04, :08, :16, :20 … and :06, :18 …, without each twelfth second.
STEPS = excluding(union("4 s", "6 s"), every("12 s"))


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


@pytest.mark.long
def test_a_stock_beat_runs_the_same_instants(system: System) -> None:
    """Given the same beat_schedule: each of its messages is for another start, and none is for an instant between."""
    system.entries = {"tick": {"task": WORK, "stored": write_schedule(STEPS)}}
    system.settings = {"timezone": "UTC"}
    began = datetime.now(UTC)
    beat = system.beat("stock", scheduler="celery.beat:Scheduler")
    sent = re.compile(r"^\[(\S+ \S+): .*Sending due task tick ", re.MULTILINE)
    wait_until(lambda: len(sent.findall(beat.log)) >= 4, "it has sent four", 90)
    starts = list(starts_after(STEPS, began, datetime.now(UTC)))
    times = [
        datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().astimezone(UTC) for text in sent.findall(beat.log)
    ]
    millisecond = timedelta(milliseconds=1)  # the log has no more
    for_starts = [max(start for start in starts if start <= time + millisecond) for time in times]
    assert len(set(for_starts)) == len(times)


def test_stored_ones_are_exported_and_applied(system: System, tmp_path: Path) -> None:
    """A file has all that makes them; applied to another store, it makes the same."""
    system.entries = {}
    schedules = Schedules(url=system.store_url)
    when = excluding(union(cron("0 2 * * *"), crontab(minute=0, hour=9)), {"2026-12-25": "Christmas Day"})
    made = schedules.set("composed", task=WORK, schedule=when, timezone="Europe/Berlin")
    text = system.once("schedules", "export")
    assert json.loads(text)["schedules"]["composed"]["schedule"]["type"] == "excluding"
    schedules.delete("composed")
    file = tmp_path / "schedules.json"
    file.write_text(text)
    system.once("schedules", "apply", "--yes", "--file", str(file))
    again = schedules.get("composed")
    schedules.close()
    assert again is not None
    assert again.schedule == made.schedule == when.in_zone(ZoneInfo("Europe/Berlin"))


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
