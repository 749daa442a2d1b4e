"""``celery once ping``: a probe that tells a living beat from none."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from processes import Proc, wait_until
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


@pytest.mark.long
def test_the_file_says_what_ping_says(system: System, start_redis, tmp_path: Path) -> None:
    """The beat touches it while Redis hears of it; where it doesn't, only that it looks; as it ends both are gone."""
    system.check_law = False
    store = system.use_store(start_redis())
    file, ticks = tmp_path / "heartbeat", tmp_path / "heartbeat.ticks"
    beat = system.beat(ONCE_BEAT_HEARTBEAT_FILE=str(file)).wait_ready()
    wait_until(file.exists, "Redis has heard of the beat", 60)
    assert system.once("ping", "--file", str(file)).startswith("Redis has heard of this beat ")
    store.pause()
    beat.wait_log("nothing is claimed until Redis can be used again")
    heard = file.stat().st_mtime_ns
    seen: set[int] = set()
    wait_until(lambda: seen.add(ticks.stat().st_mtime_ns) or len(seen) > 2, "the beat looks again and again", 60)
    assert file.stat().st_mtime_ns == heard, "Redis doesn't answer: nothing says that it has heard of the beat"
    os.utime(file, ns=(heard, heard - 16 * 10**9))
    system.once("ping", "--file", str(file), exit_code=os.EX_UNAVAILABLE)
    store.resume()
    wait_until(lambda: file.stat().st_mtime_ns > heard, "Redis hears of the beat again", 60)
    assert beat.stop() == 0
    assert not file.exists()
    assert not ticks.exists()


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
