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
