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
