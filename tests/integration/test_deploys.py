"""Beats that start, stop and are replaced: no window early, none lost, none doubled."""

from __future__ import annotations

import itertools
import re
import signal
from datetime import datetime, timedelta, timezone

import pytest
from processes import wait_until
from system import SLOWLY, System, rare

from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.windows import format_instant, parse_instant

pytestmark = pytest.mark.long


def test_a_restart_of_all_beats_loses_no_window(system: System) -> None:
    """Windows that pass while all beats restart are claimed by the next one, in order."""
    # However slow the machine, none is left to recovery.
    system.settings = {"once_beat_claim_lease": 20.0, "once_beat_publish_timeout": 20.0}
    system.worker(pool="solo").wait_ready()
    beats = [system.beat("old1"), system.beat("old2")]
    system.wait_done(2)
    assert beats[0].stop() == 0
    beats[1].kill()
    before = system.account().cursor
    wait_until(lambda: datetime.now(timezone.utc) > before + timedelta(seconds=4), "four windows pass", 60)
    beat = system.beat("new")
    system.wait_done(6)
    system.settle([beat])
    system.check_each_once()
    # What the killed beat had claimed and not published comes late.
    recorded = [event["start"] for event in system.ledger.read("recorded")]
    starts = [start for start in recorded if start > format_instant(before)]
    assert starts
    assert starts == sorted(starts)


def test_a_changed_schedule_in_a_rolling_deploy(system: System) -> None:
    """The newest definition counts at once, from now; old beats say so once and claim nothing of it."""
    old_entries = {"tick": {"task": "apps.once_app.work", "every": 1.0}}
    new_entries = {"tick": {"task": "apps.once_app.work", "every": 2.0}}
    system.entries = old_entries
    system.worker(pool="solo").wait_ready()
    old = system.beat("old")
    system.wait_done(2)
    system.entries = new_entries
    deployed = datetime.now(timezone.utc)
    new = system.beat("new")
    changed = new.wait_log(r"'tick' is changed, its windows count from (\S+)")[1]
    system.wait_done(3)
    assert old.wait_log("loaded another definition")
    assert old.log.count("loaded another definition") == 1
    system.settle([new, old])
    account = system.account()
    assert account.since == parse_instant(changed) > deployed, "a changed schedule goes on from now"
    # Law and ledger: from the change on exactly the new schedule's windows.
    assert system.outcomes() == {"done": len(system.starts())}
    ran = {event["start"] for event in system.ledger.read("recorded") if event["start"] > changed}
    assert ran == set(system.starts())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_failed_rollout(system: System, end: int) -> None:
    """When the beats with the new definition are gone, the old one takes the entry back and loses no window."""
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 1.0}}
    system.worker(pool="solo").wait_ready()
    old = system.beat("old")
    system.wait_done(1)
    new = system.beat("new", entries={"tick": {"task": "apps.once_app.work", "every": 3600.0}})
    new.wait_log("'tick' is changed")
    old.wait_log("loaded another definition")
    gone = datetime.now(timezone.utc)
    new.signal(end)
    new.wait()
    # A killed beat counts as alive for 15 s.
    changed = parse_instant(old.wait_log(r"'tick' is changed, its windows count from (\S+)")[1])
    silent = datetime.now(timezone.utc) - timedelta(seconds=BEAT_TTL)
    system.wait_done(4)
    system.settle([old])
    assert changed <= max(gone, silent), "a window after the failed beat's end was lost"
    ran = [parse_instant(event["start"]) for event in system.ledger.read("recorded")]
    after = sorted(start for start in ran if start > changed)
    assert after[0] <= changed + timedelta(seconds=1), "the first window of those that count was lost"
    assert all(b - a == timedelta(seconds=1) for a, b in itertools.pairwise(after))


def test_sigterm_in_the_middle_of_a_burst(system: System) -> None:
    """A beat that is told to end publishes and confirms what it has claimed, and ends with status 0.

    An untracked window is closed at its claim: nothing would bring it back.
    """
    plain = {f"plain{n}": {"task": "apps.once_app.plain", "every": 1.0} for n in range(20)}
    work = {f"work{n}": {"task": "apps.once_app.work", "every": 1.0} for n in range(80)}
    system.entries = {**plain, **work}
    # All that is claimed is published at once, however slow the machine: none is left to recovery, nor sent again.
    system.settings = {**SLOWLY, "broker_connection_timeout": 20.0}
    for number in range(4):
        beat = system.beat(f"beat{number}")
        sent = wait_until(lambda beat=beat: beat.log.count("Sending due task") >= 100 and beat.log, "a burst", 60)
        beat.wait_log("Sending due task", since=len(sent))  # the next burst has begun
        beat.terminate()
        assert beat.wait(60) == 0
        assert "Traceback" not in beat.log
    claimed = sum(sum(system.outcomes(entry).values()) for entry in plain)
    claimed += sum(len(system.account(entry).open) for entry in work)
    assert system.waiting() == claimed, "each window that was claimed has one message"


def test_an_entry_that_becomes_untracked(system: System) -> None:
    """Once no living beat tracks it, its open windows are dropped, each with a line in the log."""
    entry = {"task": "apps.once_app.work", "every": 1.0}
    system.entries = {"tick": entry}
    system.settings = {"once_beat_start_timeout": 2.0}
    old = system.beat("old")
    old.wait_log("'tick' is new")
    wait_until(lambda: len(system.account().open) >= 2, "two windows that nobody begins", 60)
    system.entries = {"tick": {**entry, "options": {"once": {"tracked": False}}}}
    new = [system.beat(f"new{number}") for number in (1, 2)]
    for beat in new:
        beat.wait_ready()
    old.terminate()
    assert old.wait(60) == 0
    owed = set(system.account().open)
    system.move_deadlines(-15.0)  # for so long each living beat may take what is overdue
    wait_until(lambda: not system.account().open, "none is open", 60)
    assert system.outcomes()["dropped"] >= len(owed) >= 2
    said = "is dropped: no beat tracks its entry any more"
    wait_until(lambda: any(said in beat.log for beat in new), "that is said", 60)


def test_beats_that_are_deployed_before_workers(system: System) -> None:
    """A window that a worker discards, since it doesn't know its task, is named once and tried again soon.

    So it is executed as soon as a worker comes that knows it, not only after start_timeout.
    """
    # Tried again after 2 s, 4 s, 8 s.
    system.settings = {"once_beat_start_timeout": 600.0, "once_beat_claim_lease": 2.0, "once_beat_publish_timeout": 2.0}
    known = {"task": "apps.once_app.newer", "options": {"once": {"tracked": True}}}
    old = system.worker("old").wait_ready()
    system.entries = {"tick": {**known, **rare(600.0)}}
    beat = system.beat()
    old.wait_log("doesn't know the task 'apps.once_app.newer'")
    wait_until(lambda: len(re.findall("Received unregistered task", old.log)) >= 3, "it is tried again and again", 60)
    assert old.log.count("doesn't know the task") == 1
    assert "doesn't know the task 'apps.once_app.newer': deploy workers first" in system.status()["attention"]
    (window,) = system.account().open.values()
    assert window.attempts == 0
    system.worker("new", env={"NEWER": "1"}).wait_ready()
    old.stop()
    wait_until(lambda: system.outcomes() == {"done": 1}, "it is done", 60)
    system.settle([beat])
