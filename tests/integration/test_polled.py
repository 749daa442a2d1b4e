"""Schedules that only their own is_due knows, as people write them to look at a table or at the date."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from processes import wait_until
from system import System, once_soon

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
    (name,) = system.store.beats()
    assert json.loads(system.once("ping", "--json"))["left_out"].items() >= {"tick": why}.items()
    words = f"beat {name} leaves it out: {why}"
    assert words in system.once("status")
    found = system.once("doctor", exit_code=1)
    assert f"entry tick: {words}" in found
    assert "entry (odd): left out: " in found
    shown = system.once("metrics")
    assert 'celery_once_beat_misconfigured{entry="tick"} 1.0' in shown
    assert 'celery_once_beat_misconfigured{entry="other"} 0.0' in shown
