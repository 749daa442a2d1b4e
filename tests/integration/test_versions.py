"""Versions side by side, as in a rolling upgrade: old beats and workers beside new ones, on one Redis."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from processes import TESTS
from system import System

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
    command = ["git", "archive", request.param, "celery_once_beat"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"the history has no commit {request.param}: git fetch --unshallow brings it")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        # Newer Pythons ask for one; older ones don't look at it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "old")
    # What an installed one has: -S once is looked up there.
    metadata = tmp_path / "old" / "celery_once_beat-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-once-beat\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "old"), str(TESTS)])}


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
    executed = {event["worker"].partition("@")[0] for event in system.ledger.read("finish")}
    assert {"old", "new"} <= executed
