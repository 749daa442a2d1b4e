"""A beat whose ticks fail does nothing: whoever looks at it sees that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import wait_until
from system import System

WHY = "its ticks fail, for "


@pytest.mark.long
def test_failing_ticks_are_seen(system: System, tmp_path: Path) -> None:
    """By ping, status, doctor, metrics and the heartbeat file, with the reason; and when they work again.

    No sys.exit() of a hook or of a receiver ends the beat, SIGTERM does.
    """
    fails, file = tmp_path / "fails", tmp_path / "heartbeat"
    system.scheduler = "apps.failing_beat:Failing"
    system.settings = {"once_beat_heartbeat_file": str(file)}
    system.worker().wait_ready()
    beat = system.beat(FAILS=str(fails)).wait_ready()
    system.wait_done(1)
    (name,) = system.store.snapshot().beats
    assert system.once("ping", "--beat", name) == f"{name}\n"
    fails.touch()
    beat.wait_log("a tick failed: LookupError")
    wait_until(lambda: not file.exists(), "probes see it by the file", 30)
    assert "or its ticks fail" in system.once("ping", "--file", str(file), exit_code=1)
    found = system.once("ping", exit_code=1)
    assert found.startswith(f"{name}: {WHY}")
    assert found.endswith(": LookupError: no such\n")
    shown = json.loads(system.once("ping", "--json", exit_code=1))
    assert (shown["alive"], shown["beats"], [*shown["failing"]]) == (False, [], [name])
    assert f"{name} claims nothing: {WHY}" in system.once("status", exit_code=1)
    assert f"ticks: beat {name}: {WHY}" in system.once("doctor", exit_code=1)
    assert "celery_once_beat_beats_failing 1.0" in system.once("metrics")
    fails.write_text("a hook that raises SystemExit")
    beat.wait_log("a tick failed: SystemExit")
    fails.unlink()
    beat.wait_log("ticks work again")
    system.wait_done(1)
    wait_until(file.exists, "probes see it by the file", 30)
    assert system.once("ping") == f"{name}\n"
    system.settle([beat])
    system.check_each_once()
