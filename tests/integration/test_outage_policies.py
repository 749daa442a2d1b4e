"""An outage of the store or of the broker, from its beginning to its end: what is logged, and what runs after it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from processes import Proc, wait_until
from servers import RedisServer
from system import System

pytestmark = pytest.mark.long

CATCH_UPS = ("latest", "all", "none")
OUTAGE = timedelta(seconds=12)
#: Seconds: longer than a busy machine lets a beat wait, else that would be an outage of its own.
TOLERANCE = 4.0


def said(proc: Proc, what: str = "once: ") -> list[str]:
    """Our lines of a process's log, from warnings on, without their times."""
    return re.findall(rf"(?:WARNING|ERROR)/\w+-?\d*\] ({what}.*)", proc.log)


def state_lines(proc: Proc) -> list[str]:
    """Those that aren't about one window or one entry, nor about how the server is set up."""
    return [line for line in said(proc) if not re.search(r"of '\w+'|celery once doctor", line)]


def wait_windows(system: System, entry: str, length: timedelta) -> None:
    """Let windows of ``length`` pass."""
    until = datetime.now(timezone.utc) + length
    wait_until(lambda: datetime.now(timezone.utc) > until, f"windows of {entry} pass", length.total_seconds() + 10)


def begin_outage(server: RedisServer, how: str) -> None:
    server.kill() if how == "refused" else server.pause()


def end_outage(server: RedisServer, how: str) -> None:
    server.restart() if how == "refused" else server.resume()


def sent(beat: Proc, entry: str) -> int:
    return beat.log.count(f"Sending due task {entry} ")


def overdue(beat: Proc, entry: str) -> int:
    return len(said(beat, f"once: window \\S+ of '{entry}' is overdue, to be"))


@pytest.mark.parametrize("away", ["store", "broker"])
@pytest.mark.parametrize("how", ["black hole", "refused"])
def test_an_outage(start_redis: Callable[..., RedisServer], system: System, away: str, how: str) -> None:
    """One line when it begins and one when it ends, by beat and worker; then what ``catch_up`` says, and no flood.

    What a worker's Celery logs of a broker that it can't reach, at each try, isn't counted.
    """
    server = start_redis(appendonly=True)
    if away == "store":
        system.use_store(server.url())
    else:
        system.broker_url = server.url()
    system.settings = {"once_beat_tolerance": TOLERANCE, "once_beat_start_timeout": 20.0}
    system.entries = {
        name: {"task": "apps.once_app.work", "every": 1.0, "options": {"once": {"catch_up": name}}}
        for name in CATCH_UPS
    }
    worker = system.worker(pool="solo").wait_ready()
    beat = system.beat()
    for entry in CATCH_UPS:
        system.wait_done(1, entry)
    if away == "store":
        worker.pause()
        queued = sent(beat, "all")
        wait_until(lambda: sent(beat, "all") >= queued + 2, "messages wait for the worker", 30)
    begin_outage(server, how)
    worker.resume()
    wait_windows(system, "all", OUTAGE)
    if away == "store":
        wait_until(lambda: state_lines(worker) and state_lines(beat), "both have met it", 60)
    assert beat.alive
    assert worker.alive
    end_outage(server, how)
    for entry in CATCH_UPS:
        system.wait_done(3, entry, timeout=60)
    # A message that the broker had just handed out when it died is lost, and published again after start_timeout.
    system.settle([], *CATCH_UPS, timeout=90)

    gone = {"store": "once: nothing is claimed until Redis", "broker": "once: the broker doesn't answer"}[away]
    back = {"store": "once: Redis can be used again, after", "broker": "once: the broker answers again"}[away]
    lines = state_lines(beat)
    assert len(lines) == 2, lines
    assert lines[0].startswith(gone)
    assert lines[1].startswith(back)
    put_back = ["once: messages are put back for", "once: Redis can be used again, messages"] if away == "store" else []
    lines = state_lines(worker)
    assert len(lines) == len(put_back), lines
    assert all(line.startswith(start) for line, start in zip(lines, put_back, strict=True))
    for proc in (beat, worker):
        times = Counter(said(proc))
        # A window whose second publish was lost too is overdue once more.
        again = {line: times.pop(line) for line in list(times) if "is overdue, to be published again" in line}
        assert max(times.values(), default=1) == 1, "a line was repeated"
        assert max(again.values(), default=1) <= 2, "a window was overdue again and again"
    celerys = re.findall(r"(?:WARNING|ERROR)/MainProcess\] (?!once: )(.*)", beat.log)
    assert len(celerys) <= len(CATCH_UPS), "at most one for each publish that failed when the broker went away"

    missed = {entry: system.outcomes(entry).get("missed", 0) for entry in CATCH_UPS}
    assert missed["all"] == 0
    # Of the late ones none, against one of all that are due.
    assert missed["latest"] >= missed["none"] - 1
    assert missed["latest"] >= OUTAGE.total_seconds() - TOLERANCE - 4
    for entry in CATCH_UPS:
        done = system.outcomes(entry)["done"]
        assert system.outcomes(entry) == {"done": done} | ({"missed": missed[entry]} if missed[entry] else {})
        # One message a window, and one more for what was in flight when it began.
        assert overdue(beat, entry) <= 4
        assert sent(beat, entry) <= done + overdue(beat, entry)
        assert len(system.ledger.read("start", entry=entry)) <= done + 1
    system.check_each_once("all", body_again=1)
    beat.stop()
