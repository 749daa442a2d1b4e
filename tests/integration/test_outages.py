"""The broker or the store is away, or has lost what it held: what is logged meanwhile, and what runs after it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from processes import Proc, wait_until
from servers import RedisServer, free_port
from system import EVERY_SECOND, System

from celery_once_beat.store.model import Begun
from celery_once_beat.windows import Window, encode_headers, key_of, parse_instant


@pytest.mark.long
def test_a_beat_without_a_broker_claims_nothing(system: System) -> None:
    """A beat that reaches Redis and not the broker takes no window from one that reaches both."""
    cut_off = system.beat("cut-off", BROKER_URL=f"amqp://guest:guest@127.0.0.1:{free_port()}//")
    cut_off.wait_log(r"the broker doesn't answer: amqp://guest:\*\*\*@127\.0\.0\.1:\S+ .*refused; nothing is claimed")
    system.worker(pool="solo").wait_ready()
    whole = system.beat("whole")
    system.wait_done(4)
    assert "Sending due task" not in cut_off.log
    assert cut_off.log.count("the broker doesn't answer") == 1
    system.settle([whole, cut_off])
    system.check_each_once()
    with system.client() as client:
        claimed_by = {client.get(key) for key in client.scan_iter("once:*:claim:*")}
    assert [f":{whole.pid}:".encode() in beat for beat in claimed_by] == [True]


@pytest.mark.long
def test_a_purged_queue(system: System) -> None:
    """Messages that are lost in the broker are published again: every window is executed, late."""
    system.worker(pool="solo").wait_ready().pause()
    beat = system.beat()
    wait_until(lambda: system.waiting() >= 3, "three wait", 60)
    assert system.purge() >= 2
    for worker in system.procs:
        worker.resume()
    system.wait_done(5)
    beat.wait_log("is overdue, to be published again")
    system.settle([beat])
    system.check_each_once()


@pytest.mark.long
def test_queued_windows_when_the_store_is_flushed(start_redis, system: System) -> None:
    """What waits in the queue when the store loses everything still runs, once, though its messages come twice."""
    store = system.use_store(start_redis())
    system.check_law = False  # the account of these windows is lost
    # One message each, until the copies are put there; the worker that begins one ends it.
    system.settings = {"once_beat_start_timeout": 60.0, "once_beat_lease": 30.0}
    beat = system.beat()
    wait_until(lambda: system.waiting() >= 3, "three windows wait", 60)
    beat.stop()
    queued = system.waiting()
    system.copy_waiting()
    with store.client() as client:
        client.flushall()
    for n in (1, 2):
        system.worker(f"worker{n}", pool="solo")
    wait_until(lambda: len(system.refused()) == queued, "the copies are refused", 60)
    wait_until(lambda: len(system.recorded()) == queued, "every queued window is done", 60)
    assert set(system.recorded().values()) == {1}
    assert len(system.ledger.read("start")) == queued


#: Forgets everything at a moment at which nothing is in flight: no window is open, and what passed each beat has seen,
#: since it has been heard of half a second after the last one.
FLUSH = """
for shard = 0, 15 do
  if redis.call('ZCARD', 'once:{' .. shard .. '}:open') > 0 then return 0 end
end
local seen = redis.call('TIME')[1] * 1000 + 500
local heard = redis.call('ZRANGE', 'once:beats', 0, -1, 'WITHSCORES')
for n = 2, #heard, 2 do
  if tonumber(heard[n]) < seen then return 0 end
end
redis.call('FLUSHALL')
return 1
"""


@pytest.mark.long
def test_a_flushed_store(start_redis, system: System) -> None:
    """A store that loses everything stops no schedule: no window is lost, none is executed twice.

    The guarantee may be lost for the windows in flight: they are left out here.
    """
    store = system.use_store(start_redis())
    system.entries = {
        "tick": {"task": "apps.once_app.work", "every": 1.0},
        "slow": {"task": "apps.once_app.work", "every": 6.0},
    }
    beats, _ = system.pair(pool="solo")
    system.wait_done(2)
    with store.client() as client:
        wait_until(lambda: client.eval(FLUSH, 0), "nothing is in flight", 60)
    flushed = datetime.now(timezone.utc)
    system.wait_done(8)
    # An entry that had nothing due when the store was lost goes on too.
    wait_until(lambda: any(parse_instant(start) > flushed for start in system.recorded("slow")), "the other too", 30)
    system.settle(beats)
    assert set(system.recorded().values()) == {1}, "executed twice"
    times = sorted(map(parse_instant, system.recorded()))
    assert {later - start for start, later in itertools.pairwise(times)} == {timedelta(seconds=1)}, "a window was lost"


def test_redis_away(start_redis, system: System) -> None:
    """A beat waits and says so once, a worker puts messages back; both go on when it is there again."""
    store = system.use_store(start_redis(appendonly=True))
    system.settings = {"once_beat_start_timeout": 60.0}  # what is put back isn't published again meanwhile
    beat = system.beat()
    wait_until(system.waiting, "a window is published", 60)
    store.kill()
    beat.wait_log("nothing is claimed until Redis can be used again")
    worker = system.worker(pool="solo").wait_ready()
    worker.wait_log("put back for")
    assert beat.alive
    assert not system.ledger.read("start")
    store.restart()
    beat.wait_log("Redis can be used again, after")
    system.wait_done(4)
    system.settle([beat])
    system.check_each_once(body_again=1)
    assert beat.log.count("nothing is claimed until Redis can be used again") == 1
    assert {event["retries"] for event in system.ledger.read("start")} == {0}, "the user's retries were touched"


def said(proc: Proc) -> list[str]:
    """Our lines of a process's log, from warnings on, without their times."""
    return re.findall(r"(?:WARNING|ERROR)/\w+-?\d*\] (once: .*)", proc.log)


def state_lines(proc: Proc) -> list[str]:
    """Those that aren't about one window or one entry, nor about how the server is set up."""
    return [line for line in said(proc) if not re.search(r"of '\w+'|celery once doctor", line)]


def sent(beat: Proc) -> int:
    return beat.log.count("Sending due task tick ")


#: What beat and worker say as it begins, and as it ends.
SAID = {
    "store": (
        ["once: nothing is claimed until Redis", "once: Redis can be used again, after"],
        ["once: messages are put back for", "once: Redis can be used again, messages"],
    ),
    "broker": (["once: the broker doesn't answer", "once: the broker answers again"], []),
}


@pytest.mark.parametrize("away", SAID)
@pytest.mark.parametrize("how", ["black hole", "refused"])
@pytest.mark.long
def test_an_outage(start_redis: Callable[..., RedisServer], system: System, away: str, how: str) -> None:
    """One line when it begins and one when it ends, by beat and worker; then every window runs, without a flood.

    What a worker's Celery logs of a broker that it can't reach, at each try, isn't counted.
    """
    server = start_redis(appendonly=True)
    if away == "store":
        system.use_store(server.url())
    else:
        system.broker_url = server.url()
    # Longer than a busy machine lets a beat wait, else that would be an outage of its own.
    system.settings = {"once_beat_tolerance": 4.0, "once_beat_start_timeout": 20.0}
    system.entries = {"tick": {**EVERY_SECOND["tick"], "options": {"once": {"catch_up": "all"}}}}
    worker = system.worker(pool="solo").wait_ready()
    beat = system.beat()
    system.wait_done(1)
    if away == "store":
        worker.pause()
        queued = sent(beat)
        wait_until(lambda: sent(beat) >= queued + 2, "messages wait for the worker", 30)
    server.kill() if how == "refused" else server.pause()
    worker.resume()
    until = datetime.now(timezone.utc) + timedelta(seconds=12)
    wait_until(lambda: datetime.now(timezone.utc) > until, "windows pass", 30)
    if away == "store":
        wait_until(lambda: state_lines(worker) and state_lines(beat), "both have met it", 60)
    assert beat.alive
    assert worker.alive
    server.restart() if how == "refused" else server.resume()
    system.wait_done(12, timeout=60)
    # A message that the broker had just handed out when it died is lost, and published again after start_timeout.
    system.settle([], timeout=90)

    for proc, starts in zip((beat, worker), SAID[away], strict=True):
        lines = state_lines(proc)
        assert len(lines) == len(starts), lines
        assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
        times = Counter(said(proc))
        # A window whose second publish was lost too is overdue once more.
        again = {line: times.pop(line) for line in list(times) if "is overdue, to be published again" in line}
        assert max(times.values(), default=1) == 1, "a line was repeated"
        assert max(again.values(), default=1) <= 2, "a window was overdue again and again"
    celerys = re.findall(r"(?:WARNING|ERROR)/MainProcess\] (?!once: )(.*)", beat.log)
    assert len(celerys) <= 1, "at most for the publish that failed when the broker went away"
    # One message a window, and one more for what was in flight when it began.
    overdue = len(re.findall(r"once: window \S+ of 'tick' is overdue, to be", beat.log))
    assert overdue <= 4
    assert sent(beat) <= system.outcomes()["done"] + overdue
    assert len(system.ledger.read("start")) <= system.outcomes()["done"] + 1
    system.check_each_once(body_again=1)
    beat.stop()


@pytest.mark.long
def test_a_copy_of_a_window_that_nobody_recovers(system: System) -> None:
    """Of a key, or untracked: its worker died, and the copy that the broker delivers again isn't refused but waits.

    A copy that comes while the body runs waits too, and is refused once it is done.
    """
    start = datetime(2026, 11, 21, tzinfo=timezone.utc)
    windows = [Window("untracked", start, None, tracked=False), Window("key", start, None, tracked=False, keyed=True)]
    worker = system.worker(pool="solo").wait_ready()
    for window in windows:
        assert isinstance(system.store.begin(key_of(window), "died", 3.0, tracked=False), Begun)
        for _ in range(2):
            system.send("apps.once_app.work", encode_headers(window))
    for window in windows:
        wait_until(lambda: system.ledger.read("finish", entry=window.entry), "it runs", 60)  # noqa: B023
        wait_until(lambda: system.refused(window.entry), "its other copy is refused", 60)  # noqa: B023
    assert len(system.ledger.read("start")) == 2
    assert worker.log.count("or has died: this copy is redelivered") == 4
    assert system.waiting() == 0
    system.check_law = False


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_serves_others_while_the_store_hangs(start_redis, system: System, pool: str) -> None:
    """Its main process doesn't wait for the store: an expired message of a window holds up no ping and no other task.

    What isn't recorded when it ends is said.
    """
    store = system.use_store(start_redis())
    system.settings = {"once_beat_redis_options": {"socket_timeout": 600.0}}
    worker = system.worker(pool=pool, concurrency=2).wait_ready()
    store.pause()
    window = Window("tick", datetime(2026, 1, 1, tzinfo=timezone.utc), None)
    with Celery(broker=system.broker_url, set_as_current=False) as app:
        past = datetime.now(timezone.utc) - timedelta(minutes=1)
        app.send_task("apps.once_app.work", queue=system.queue, headers=encode_headers(window), expires=past)
        worker.wait_log("Discarding revoked task")
        app.send_task("apps.once_app.plain", queue=system.queue)
        wait_until(lambda: system.ledger.read("start", name="plain"), "another task runs", 60)
        wait_until(lambda: app.control.ping(timeout=5), "a ping is answered", 60)
    worker.terminate()
    worker.wait(60)
    assert "once: expired not recorded: this worker ends" in worker.log
    store.resume()
