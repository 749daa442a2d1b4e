"""The broker or the store is away, or has lost what it held."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from processes import wait_until
from servers import free_port
from system import System

from celery_once_beat.store.model import Begun
from celery_once_beat.windows import Window, encode_headers, format_instant, key_of


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
def test_the_broker_comes_back(start_redis, system: System) -> None:
    """A beat whose broker goes away claims nothing, and goes on by itself when it is back; no window is lost."""
    broker = start_redis(appendonly=True)
    system.broker_url = broker.url()
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    system.wait_done(2)
    broker.kill()
    beat.wait_log("the broker doesn't answer")
    cursor = system.account().cursor
    wait_until(lambda: datetime.now(timezone.utc) > cursor + timedelta(seconds=3), "three windows pass", 10)
    assert system.account().cursor - cursor <= timedelta(seconds=1)
    broker.restart()
    beat.wait_log("the broker answers again")
    system.wait_done(4)
    system.settle([beat])
    system.check_each_once(body_again=1)


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
    for body in system.queued():
        system.put(body)
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
    wait_until(lambda: any(start > flushed.timestamp() for start in _recorded(system, "slow")), "the other too", 30)
    system.settle(beats)
    starts = [event["start"] for event in system.ledger.read("recorded", entry="tick")]
    assert len(starts) == len(set(starts)), "executed twice"
    times = sorted(_timestamp(start) for start in starts)
    assert [b - a for a, b in itertools.pairwise(times)] == [1.0] * (len(times) - 1), "a window was lost"


@pytest.mark.long
def test_redis_away_from_a_beat(start_redis, system: System) -> None:
    """A beat whose store is away waits, says so once, and goes on by the catch-up policy; it never ends."""
    store = system.use_store(start_redis(appendonly=True))
    system.settings = {"once_beat_start_timeout": 20.0}  # what is put back isn't published again meanwhile
    system.worker(pool="solo").wait_ready()
    beat = system.beat()
    system.wait_done(2)
    store.kill()
    beat.wait_log("nothing is claimed until Redis can be used again")
    sent = beat.log.count("Sending due task")
    beat_at = datetime.now(timezone.utc)
    wait_until(lambda: datetime.now(timezone.utc) > beat_at + timedelta(seconds=3), "three windows pass", 10)
    assert beat.alive
    assert beat.log.count("Sending due task") == sent
    store.restart()
    beat.wait_log("Redis can be used again, after")
    system.wait_done(5)
    system.settle([beat])
    system.check_each_once(body_again=1)
    assert beat.log.count("nothing is claimed until Redis can be used again") == 1
    assert beat.log.count("Sending due task") <= len(system.starts()) + 1, "windows are published twice after it"


def test_a_beat_starts_before_redis(system: System) -> None:
    """A beat that finds no Redis at its start waits for it, and says so; other settings of it are not blamed."""
    beat = system.beat(STORE_URL=f"redis://:secret@127.0.0.1:{free_port()}/0")
    beat.wait_log("nothing is claimed until Redis can be used again: .*Connection refused")
    assert beat.alive
    assert "secret" not in beat.log
    system.check_law = False


def test_redis_away_from_a_worker(start_redis, system: System) -> None:
    """A worker that can't ask the store puts the message back."""
    store = system.use_store(start_redis(appendonly=True))
    system.settings = {"once_beat_start_timeout": 60.0}
    beat = system.beat()
    wait_until(system.waiting, "a window is published", 60)
    beat.kill()
    start = min(system.account().open)
    store.kill()
    worker = system.worker(pool="solo").wait_ready()
    worker.wait_log("put back for")
    assert not system.ledger.read("start")
    store.restart()
    wait_until(lambda: system.recorded()[format_instant(start)], "it runs once the store is back", 60)
    assert next(e["retries"] for e in system.ledger.read("start")) == 0, "the user's retries were touched"


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


def _recorded(system: System, entry: str) -> list[float]:
    return [_timestamp(event["start"]) for event in system.ledger.read("recorded", entry=entry)]


def _timestamp(text: str) -> float:
    from celery_once_beat.windows import parse_instant

    return parse_instant(text).timestamp()


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
