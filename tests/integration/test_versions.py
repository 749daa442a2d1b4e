"""Versions side by side, as in a rolling upgrade: old beats and workers beside new ones, on one Redis."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import TESTS, wait_until
from system import System

from celery_once_beat import Schedules
from celery_once_beat.windows import parse_instant

ROOT = Path(__file__).resolve().parents[2]
#: The last commit before messages had a ``once_id`` and entries a bounded list of beats; the last of one flat package.
OLD = (pytest.param("0ffe4f06d9", marks=pytest.mark.long), "ae3c21f46d")
ENTRY_POINTS = """\
[celery.beat_schedulers]
once = celery_once_beat.scheduler:OnceScheduler

[celery.commands]
once = celery_once_beat.cli:once
"""


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that runs the old package."""
    return package_of(request.param, tmp_path)


def package_of(commit: str, tmp_path: Path) -> dict[str, str]:
    command = ["git", "archive", commit, "celery_once_beat"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"the history has no commit {commit}: git fetch --unshallow brings it")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        # Newer Pythons ask for one; older ones don't look at it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "old")
    # What an installed one has: -S once is looked up there.
    metadata = tmp_path / "old" / "celery_once_beat-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-once-beat\nVersion: 0.1.0\n")
    flat = (tmp_path / "old" / "celery_once_beat" / "scheduler.py").exists()
    entry_points = ENTRY_POINTS if flat else ENTRY_POINTS.replace(".scheduler:", ":")
    (metadata / "entry_points.txt").write_text(entry_points)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "old"), str(TESTS)])}


@pytest.mark.long
def test_old_and_new_side_by_side(system: System, old: dict[str, str]) -> None:
    """Each window is done once, whoever claims and executes it, also after a kill of an old beat and a new worker."""
    system.entries = {name: {"task": "apps.once_app.work", "every": 1.0} for name in ("tick", "tock", "tack")}
    workers = [system.worker("old", env=old), system.worker("new")]
    for worker in workers:
        worker.wait_ready()
    beats = [system.beat("old", **old), system.beat("new")]
    for beat in beats:
        beat.wait_ready()
    system.wait_done(8)
    for beat in beats:
        beat.wait_log("Sending due task")
    beats[0].kill()
    workers[1].kill()
    system.wait_done(5)
    beats.append(system.beat("old again", **old))
    workers.append(system.worker("new again").wait_ready())
    system.wait_done(8)
    beats[2].wait_log("Sending due task")
    for entry in system.entries:
        system.store.pause(entry)
    system.settle([beats[1], beats[2]])
    for entry in ("tock", "tack"):
        system.settle([], entry)
    for entry in system.entries:
        system.check_each_once(entry, body_again=1)
        # An old worker leaves the histograms as they are.
        counted = sum(system.account(entry).times["ran"].counts.values())
        assert counted < system.outcomes(entry)["done"]
    executed = {event["worker"].partition("@")[0] for event in system.ledger.read("finish")}
    assert {"old", "new"} <= executed
    assert any(system.account(entry).times["ran"].counts for entry in system.entries)


#: The last commit before entries could be set at run time.
WITHOUT_SCHEDULES = ("91186af50e", pytest.param("ae3c21f46d", marks=pytest.mark.long))


@pytest.mark.long
@pytest.mark.parametrize("commit", WITHOUT_SCHEDULES)
def test_an_old_beat_leaves_alone_what_was_set_at_run_time(system: System, commit: str, tmp_path: Path) -> None:
    """Beside a new one, and alone for a while: nothing is doubled, what is owed and what is overdue runs."""
    old = package_of(commit, tmp_path)
    system.entries = {"tock": {"task": "apps.once_app.work", "every": 1.0}}
    workers = [system.worker("worker"), system.worker("old worker", env=old)]
    for worker in workers:
        worker.wait_ready()
    beats = [system.beat("old", **old), system.beat("new")]
    for beat in beats:
        beat.wait_ready()
    schedules = Schedules(url=system.store_url)
    once = {"catch_up": "all"}
    made = schedules.set("tick", task="apps.once_app.work", schedule=0.5, once=once)
    system.wait_done(4)
    workers[1].kill()
    system.wait_done(4)
    beats[1].kill()
    system.count_as_gone(beats[1])
    system.wait_done(4, "tock")
    account = system.account()
    mark = account.fingerprint
    beats.append(system.beat("new again").wait_ready())
    system.wait_done(8)
    assert system.account().fingerprint == mark
    changed = schedules.set("tick", task="apps.once_app.work", schedule=0.7, once=once)
    wait_until(
        lambda: sum(parse_instant(start) > changed.changed_at for start in system.recorded()) >= 4,
        "windows of the new definition are done",
        60,
    )
    schedules.delete("tick")
    schedules.close()
    wait_until(lambda: not system.account().open, "every window has its outcome", 60)
    done = sorted(map(parse_instant, system.recorded()))
    assert max(system.recorded().values()) == 1
    for definition, starts in (
        (0.5, [start for start in done if start <= changed.changed_at]),
        (0.7, [start for start in done if start > changed.changed_at]),
    ):
        assert {later - start for start, later in pairwise(starts)} == {timedelta(seconds=definition)}
    assert made.changed_at < done[0] <= made.changed_at + timedelta(seconds=0.5)


@pytest.mark.long
def test_old_and_new_readers(system: System, old: dict[str, str]) -> None:
    """A new reader goes by its code for what an old beat runs; an old reader reads what new beats and workers wrote."""
    system.check_law = False
    system.entries = {
        "tick": {"task": "apps.once_app.work", "every": 1.0},
        "fails": {"task": "apps.once_app.ending", "args": ["fails"], "every": 1.0},
    }
    code = {**system.entries, "later": {"task": "apps.once_app.work", "every": 3600.0}}

    def shown(**env: Any) -> dict[str, Any]:
        asked = system.celery("once", "status", "--json", **env)
        assert asked.wait(120) in (0, 1), asked.log
        return dict(json.loads(asked.log))

    system.worker("worker", concurrency=1).wait_ready()
    first = system.beat("old", **old)
    wait_until(lambda: system.store.account("fails") and system.store.account("tick"), "the old beat has loaded", 60)
    seen = shown()
    assert {entry["entry"]: entry["schedule"] for entry in seen["entries"]} == dict.fromkeys(
        system.entries, "every 1 s"
    )
    assert seen["code"] == ""
    assert "no beat runs 'later'" in shown(entries=code)["code"]
    system.beat("new")
    with system.client() as client:
        wait_until(lambda: client.keys("once:{*}:entries"), "the new beat says what it has", 60)
        first.stop()
        wait_until(lambda: client.keys("once:{*}:failures:fails"), "something has failed", 60)
    system.wait_done(1)
    assert {entry["entry"] for entry in shown(**old)["entries"]} == set(system.entries)
    assert {entry["entry"] for entry in shown(entries={})["entries"]} == set(system.entries)
    system.worker("older", concurrency=1, env=old).wait_ready()
    system.beat("old again", **old).wait_ready()
    system.wait_done(3)
    assert {entry["entry"] for entry in shown()["entries"]} == set(system.entries)


#: Commits before windows were told of.
UNTOLD = [pytest.param(commit, marks=pytest.mark.long) for commit in ("884aff6", "29d9282")]


@pytest.mark.parametrize("commit", UNTOLD)
def test_what_is_told_beside_old_beats_and_workers(system: System, commit: str, tmp_path: Path) -> None:
    """An old beat passes over what is to be told, and works on; a new one tells it once it is back."""
    old = package_of(commit, tmp_path)
    entry = {"task": "apps.once_app.ending", "args": ["fails"], "every": 1.0}
    system.entries = {"tick": entry, "tock": {"task": "apps.once_app.work", "every": 1.0}}
    told = {"deadline": 2.0, "on_failure": "apps.once_app.tell"}
    new = {**system.entries, "tick": {**entry, "options": {"once": told}}}
    system.worker("listener", extra_args=["-Q", f"{system.queue}-told"]).wait_ready()
    for worker in (system.worker("old worker", env=old), system.worker("worker")):
        worker.wait_ready()
    old_beat, new_beat = system.beat("old", **old), system.beat("new", entries=new)
    for beat in (old_beat, new_beat):
        beat.wait_ready()
    wait_until(lambda: len(system.ledger.read("told")) >= 3, "ends are told", 60)
    wait_until(lambda: len(system.ledger.read("late")) >= 3, "late windows are told", 60)
    new_beat.kill()
    system.count_as_gone(new_beat)
    before = len(system.starts("tock"))
    wait_until(lambda: len(system.starts("tock")) > before + 5, "the old beat goes on", 60)
    with system.client() as client:
        notices = client.zcount(system.store.keys.open(system.store.shard_of("tick")), "-inf", "+inf")
    assert notices > 0
    again = system.beat("new again", entries=new)
    again.wait_ready()
    account = system.account()
    shard = system.store.keys.open(system.store.shard_of("tick"))
    for name in ("tick", "tock"):
        system.store.pause(name)
    wait_until(lambda: not system.account().open, "every window has its outcome", 60)
    with system.client() as client:
        wait_until(lambda: not client.zcard(shard), "all is told", 60)
    assert account.deadline == 2.0
    for kind in ("told", "late"):
        starts = [each["start"] for each in system.ledger.read(kind)]
        assert len(starts) - len(set(starts)) <= 1, "of what the killed one said, one may be said again"
    assert set(system.outcomes()) == {"failed"}
    assert set(system.outcomes("tock")) == {"done"}
    assert "is no account" not in old_beat.log
    assert "Traceback" not in old_beat.log
    system.check_conservation()


#: The last commit that knows neither buffers nor limits.
BEFORE_BUFFERS = "29d9282"


def two_at_once(system: System) -> int:
    """How many bodies ran at the same time at most, by the ledger."""
    events = (event for event in system.ledger.read() if event["kind"] in {"start", "finish"})
    running, most = 0, 0
    for event in sorted(events, key=lambda event: (event["mono"], event["kind"] == "start")):
        running += 1 if event["kind"] == "start" else -1
        most = max(most, running)
    return most


@pytest.mark.long
def test_a_worker_that_knows_no_buffers(system: System, tmp_path: Path) -> None:
    """It skips what has to wait, and nothing runs beside another; what it ends, a beat calls the next of."""
    old = package_of(BEFORE_BUFFERS, tmp_path)
    system.entries = {
        "tick": {
            "task": "apps.once_app.work",
            "every": 0.7,  # kombu asks once a second: with a period of one, the same worker may get all of them
            "args": [1.5],
            "options": {"once": {"overlap": "buffer_all"}},
        }
    }
    system.settings = {"once_beat_lease": 30.0}
    # Alone at first: of two that take turns, it may get those alone that the other has called.
    old_worker = system.worker("old", concurrency=2, env=old).wait_ready()
    beat = system.beat()
    wait_until(lambda: system.outcomes().get("skipped"), "the old one skips", 60)
    new_worker = system.worker("new", concurrency=2).wait_ready()
    wait_until(lambda: "waits for 20" in new_worker.log, "the new one lets wait", 60)
    old_worker.stop()
    system.settle([beat], timeout=120)
    assert set(system.outcomes()) == {"done", "skipped"}
    assert two_at_once(system) == 1
    system.check_conservation()


@pytest.mark.long
def test_a_worker_that_knows_no_limits(system: System, tmp_path: Path) -> None:
    """It puts messages with a limit back, until a worker that knows it has them."""
    old = package_of(BEFORE_BUFFERS, tmp_path)
    system.entries = {"tick": {"task": "apps.once_app.work", "every": 2.0, "options": {"once": {"limit": "reports"}}}}
    system.settings = {"once_beat_start_timeout": 600.0}
    limits = {"settings": {"once_beat_limits": {"reports": 1}}}
    first = system.worker("old", env=old).wait_ready()
    beat = system.beat(**limits)
    wait_until(lambda: "messages are put back" in first.log, "it puts one back", 60)
    assert not system.ledger.read("start")
    system.worker("new", env=limits).wait_ready()
    system.wait_done(3)
    system.settle([beat])
    assert {event["worker"].partition("@")[0] for event in system.ledger.read("start")} == {"new"}
    system.check_each_once()
