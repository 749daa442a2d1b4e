"""``celery once ping``: a probe that tells a living beat from none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import Proc, environ, wait_until
from system import System


def ping(system: System, *arguments: str, **env: Any) -> Proc:
    proc = system.celery("once", "ping", *arguments, name="ping", **env)
    proc.wait()
    return proc


def test_a_beat_that_lives_is_found_until_it_ends(system: System) -> None:
    """Exit 0 where a beat lives, any or the one that is named by its ID or its host; 1 where none does."""
    system.check_law = False
    before = ping(system)
    assert (before.exit_code, before.log) == (1, "no beat lives; alive: none\n")
    with system.client() as client:
        assert client.keys() == [], "a probe writes nothing"

    beat = system.beat().wait_ready()
    wait_until(lambda: len(system.store.snapshot().beats) == 1, "the beat has said that it lives", 60)
    (name,) = system.store.snapshot().beats
    for arguments in ([], ["--beat", name], ["--beat", socket.gethostname()]):
        found = ping(system, *arguments)
        assert (found.exit_code, found.log) == (0, f"{name}\n")
    other = ping(system, "--beat", "elsewhere")
    assert (other.exit_code, other.log) == (1, f"no beat elsewhere lives; alive: {name}\n")

    beat.stop()
    assert ping(system).exit_code == 1, "a beat that ends says so at once"


# -- the heartbeat file


class HeartbeatFile:
    """The file of one beat, and what probes say by it. None of them knows the app."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "heartbeat"
        self.ticks = folder / "heartbeat.ticks"

    def changed(self) -> tuple[int, int]:
        """When each was changed, in ns; 0 where it isn't there."""
        heard, looked = (path.stat().st_mtime_ns if path.exists() else 0 for path in (self.path, self.ticks))
        return heard, looked

    def grow_older(self, seconds: float, *paths: Path) -> None:
        """Let these files be as they are so many seconds later."""
        for path in paths or (self.path, self.ticks):
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))

    def ping(self) -> tuple[int, str]:
        command = [sys.executable, "-m", "celery", "once", "ping", "--file", str(self.path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environ({}))
        return done.returncode, done.stdout + done.stderr

    def find(self) -> int:
        """As docs/kubernetes.md and others show it."""
        script = f"test \"$(find {self.path} -newermt '-15 seconds')\""
        return subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True, timeout=60).returncode


@pytest.fixture
def file(tmp_path: Path) -> HeartbeatFile:
    return HeartbeatFile(tmp_path)


@pytest.mark.long
def test_the_file_says_what_ping_says(system, start_redis, file) -> None:
    """0 while Redis hears of the beat, 69 where it doesn't and the beat looks for it, 1 where that hangs or ended."""
    system.check_law = False
    store = system.use_store(start_redis())
    assert file.ping() == (1, f"Redis doesn't hear of a beat, or its ticks fail, by {file.path}\n")
    beat = system.beat(ONCE_BEAT_HEARTBEAT_FILE=str(file.path)).wait_ready()
    wait_until(file.path.exists, "Redis has heard of the beat", 60)
    assert file.find() == 0
    status, text = file.ping()
    assert status == 0
    assert text.startswith("Redis has heard of this beat ")

    store.pause()
    beat.wait_log("nothing is claimed until Redis can be used again")
    heard = file.changed()[0]
    seen: set[int] = set()
    wait_until(lambda: seen.add(file.changed()[1]) or len(seen) > 2, "the beat looks again and again", 60)
    assert file.changed()[0] == heard, "Redis doesn't answer: nothing says that it has heard of the beat"
    file.grow_older(16, file.path)
    assert (file.ping()[0], file.find()) == (os.EX_UNAVAILABLE, 1), "as where ping gets no answer"
    store.resume()
    wait_until(lambda: file.find() == 0, "Redis hears of the beat again", 60)

    beat.pause()
    file.grow_older(16)
    assert (file.ping()[0], file.find()) == (os.EX_UNAVAILABLE, 1)
    file.grow_older(45)
    assert file.ping()[0] == 1, "it hangs"
    beat.resume()
    wait_until(lambda: file.find() == 0, "it goes on", 60)

    assert beat.stop() == 0
    assert (file.changed(), file.ping()[0]) == ((0, 0), 1), "a beat that ends says so at once"


@pytest.mark.long
def test_a_file_that_can_not_be_written(system: System, tmp_path: Path) -> None:
    """One line says it, and what to set; the beat goes on, and writes it once that is possible."""
    folder = tmp_path / "missing"
    system.worker(pool="solo").wait_ready()
    beat = system.beat(ONCE_BEAT_HEARTBEAT_FILE=str(folder / "heartbeat")).wait_ready()
    system.wait_done(3)
    assert beat.log.count("can't be written") == 1
    assert f"heartbeat file {folder}/heartbeat can't be written: No such file or directory" in beat.log
    folder.mkdir()
    wait_until((folder / "heartbeat").exists, "it is written", 60)
    system.settle([beat])
