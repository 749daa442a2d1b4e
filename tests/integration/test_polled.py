"""Schedules of which only their own is_due knows, that leave days out, or whose zones have other rules elsewhere."""

from __future__ import annotations

import json
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from processes import wait_until
from system import System, once_soon
from zone_files import other_rules

from celery_once_beat import Schedules
from celery_once_beat.schedules import cron, excluding, write_schedule
from celery_once_beat.windows import parse_instant

pytestmark = pytest.mark.long


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


def test_an_is_due_that_raises_is_seen(system: System, tmp_path: Path) -> None:
    """By ping, status, doctor and the metrics, with its reason, though only beats ask it."""
    work = tmp_path / "work"
    work.write_text("raises")
    system.check_law = False  # as above
    other = {"task": "apps.once_app.work", **once_soon()}
    system.entries = {"tick": {"task": "apps.once_app.work", "polled": [str(work), 1.0]}, "other": other}
    system.entries["(odd)"] = {**other, "options": {"once": {"grce": 1}}}
    beat = system.beat().wait_ready()
    beat.wait_log("entry 'tick': LookupError")
    why = "LookupError('no such table')"
    wait_until(lambda: why in system.once("ping"), "the beat says so", 30)
    assert f"entry tick is left out: {why}\n" in system.once("ping")
    (name,) = system.store.snapshot().beats
    assert json.loads(system.once("ping", "--json"))["left_out"].items() >= {"tick": why}.items()
    words = f"beat {name} leaves it out: {why}"
    assert words in system.once("status")
    found = system.once("doctor", exit_code=1)
    assert f"entry tick: {words}" in found
    assert "entry (odd): can't run: " in found
    shown = system.once("metrics")
    assert 'celery_once_beat_misconfigured{entry="tick"} 1.0' in shown
    assert 'celery_once_beat_misconfigured{entry="other"} 0.0' in shown


WORK = "apps.once_app.work"


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


ZONE = "Europe/Berlin"
WHEN = cron("*/4 * * * * *", tz=ZONE)


@pytest.mark.parametrize("stored", [False, True], ids=["of code", "set at run time"])
def test_beats_with_other_time_zone_data(system: System, tmp_path: Path, stored: bool) -> None:
    """The one that loaded last counts, and the other says why its own starts don't."""
    system.check_law = False  # this process computes the starts as the first beat does
    system.entries = {}
    if stored:
        with closing(Schedules(url=system.store_url)) as schedules:
            schedules.set("tick", task="apps.once_app.work", schedule=WHEN)
    else:
        system.entries = {"tick": {"task": "apps.once_app.work", "stored": write_schedule(WHEN)}}
    system.worker().wait_ready()
    first = system.beat("first")
    system.wait_done(2)
    system.beat("second", PYTHONTZPATH=other_rules(tmp_path, ZONE, 3602)).wait_ready()
    wait_until(lambda: "with other rules of its time zone" in first.log, "the first beat says what differs", 60)
    assert "time zones: beats know other rules of the zones of 'tick'" in system.once("doctor", exit_code=1)
    system.wait_done(3)
    starts = sorted(parse_instant(start).second % 4 for start in system.recorded())
    in_order = [parse_instant(start).second % 4 for start in sorted(system.recorded())]
    assert set(starts) == {0, 2}
    assert in_order == starts, "starts of both beats alternate"
