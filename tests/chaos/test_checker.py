"""The checker sees what goes wrong, first of all with stock beat, and excuses nothing that the promise doesn't."""

from __future__ import annotations

import time

import pytest
from chaos.checker import Waits, judge, text_of
from processes import wait_until

LEASE = 1.5
WINDOW = {"entry": "tick", "start": text_of(10)}


@pytest.mark.long
def test_every_check_fails_on_stock_beat(procs, ledger, redis_url):
    """Two stock beats, one with a clock ahead, and kills: windows are early, overlap, are done twice, and get lost."""
    env = {"BROKER_URL": redis_url, "QUEUE": "stock-chaos", "LEDGER": str(ledger.path)}
    worker = procs.start_worker("chaos.stock", env=env, concurrency=4)
    worker.wait_ready()
    ledger.write("clock", epoch=time.monotonic() - time.time())
    stock = {"env": env, "scheduler": "celery.beat:PersistentScheduler"}
    beats = [procs.start_beat("chaos.stock", name=name, **stock) for name in ("beat1", "beat2")]
    for beat in beats:
        beat.wait_ready()
    wait_until(lambda: len(ledger.read("finish")) > 6, "windows of both beats", 60)
    begin = time.monotonic()
    for beat in beats:
        beat.kill()
    wait_until(lambda: time.monotonic() > begin + 3, "a gap without beat", 60)
    procs.start_beat("chaos.stock", name="ahead", faketime=2.0, **stock)
    procs.start_beat("chaos.stock", name="beat3", **stock)

    def found():
        return judge(ledger.read(), {"tick": 1.0}, begin - 2, time.monotonic(), LEASE)

    def has_all():
        verdict = found()
        return verdict.finished_twice and verdict.recorded_twice and verdict.overlapped and verdict.early

    wait_until(has_all, "windows of both beats, one of which is ahead", 60)

    def stands_in_a_body():
        """And in no body's last line, for which its death would be an excuse."""
        worker.pause()
        starts, ends, records = (len(ledger.read(kind)) for kind in ("start", "finish", "recorded"))
        if starts > ends == records:
            return True
        worker.resume()
        return False

    wait_until(stands_in_a_body, "a body runs", 60)
    worker.kill()
    ledger.write("fault", effect="death", of=worker.pid)
    verdict = found()
    assert verdict.lost, "no beat ran for three seconds, and a worker was killed in a body"
    assert verdict.finished_twice
    assert verdict.recorded_twice
    assert verdict.overlapped
    assert verdict.early
    assert not verdict.excused
    assert not verdict.kept


# -- what is not excused


def body(begin, end, *, fence, recorded=True, pid=1, finish=True):
    who = {**WINDOW, "pid": pid, "group": pid, "fence": fence}
    events = [{"kind": "start", "mono": begin, **who}]
    if finish:
        events.append({"kind": "finish", "mono": end, **who})
    if recorded:
        events.append({"kind": "recorded", "mono": end, **who})
    return events


def out(begin, end, of=1, number=1):
    return [
        {"kind": "fault", "effect": "out", "of": of, "mono": begin, "number": number},
        {"kind": "over", "mono": end, "number": number},
    ]


def death(at, of=1):
    return [{"kind": "fault", "effect": "death", "of": of, "mono": at}]


def flush(at):
    return [{"kind": "fault", "effect": "flush", "of": None, "mono": at}]


def verdict_of(*groups, ends=15, waits=None):
    events = [{"kind": "clock", "epoch": 0.0}, *sorted((e for g in groups for e in g), key=lambda e: e["mono"])]
    return judge(events, dict.fromkeys(("tick", "tock"), 10.0), 5, ends, LEASE, waits)


SECOND = body(14, 15, fence=2, pid=2)
FAULTS = {
    "lost": ([], "lost"),
    "never finished": ([body(10.1, 11, fence=1, recorded=False, finish=False)], "lost"),
    "early": ([body(9.9, 11, fence=1)], "early"),
    "twice": ([body(10.1, 11, fence=1), SECOND], "finished_twice"),
    "recorded twice": ([body(10.1, 11, fence=1), SECOND, out(10.2, 13)], "recorded_twice"),
    "overlapped": ([body(10.1, 14.5, fence=1, recorded=False), SECOND], "overlapped"),
    "frozen for less than its lease": (
        [body(10.1, 14.5, fence=1, recorded=False), SECOND, out(10.5, 11.9)], "finished_twice",
    ),
    "frozen long before its first line": (
        [body(12.8, 13, fence=1, recorded=False), SECOND, out(9, 11.5)], "finished_twice",
    ),
    "another was frozen": (
        [body(10.1, 14.5, fence=1, recorded=False), SECOND, out(10.5, 14, of=3)], "finished_twice",
    ),
    "killed long after": ([body(10.1, 11, fence=1, recorded=False), SECOND, death(14.5)], "finished_twice"),
    "flushed before": ([body(10.1, 11, fence=1), SECOND, flush(9)], "finished_twice"),
    "lost, and flushed before it was due": ([flush(9)], "lost"),
}  # fmt: skip


@pytest.mark.parametrize("story", FAULTS)
def test_what_is_not_excused_is_a_fault(story):
    """A fault with no excuse, or with one that isn't its own, is a fault."""
    groups, found = FAULTS[story]
    verdict = verdict_of(*groups)
    assert getattr(verdict, found), verdict
    assert not verdict.kept


# -- windows that wait


def other_body(begin, end, *, fence, of="tick", start=20, pid=2):
    return [{**event, "entry": of, "start": text_of(start)} for event in body(begin, end, fence=fence, pid=pid)]


IN_TURN = Waits(in_turn={"tick"})
ONE_PLACE = Waits(limits={"shared": ({"tick", "tock"}, 1)})
TWO_PLACES = Waits(limits={"shared": ({"tick", "tock"}, 2)})
FIRST = body(20.1, 23, fence=1)
DIED = body(20.1, 23, fence=1, finish=False, recorded=False)


@pytest.mark.parametrize(
    ("waits", "groups", "found"),
    [
        (IN_TURN, [FIRST, other_body(23.1, 24, fence=2)], None),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2)], "beside"),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2, of="tock")], None),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2), out(20.5, 22.8)], None),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2), out(20.5, 22.8, of=3)], "beside"),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2), flush(20.5)], None),
        (IN_TURN, [FIRST, other_body(22.9, 24, fence=2), flush(9)], "beside"),
        (ONE_PLACE, [FIRST, other_body(22.9, 24, fence=2, of="tock")], "above_limit"),
        (TWO_PLACES, [FIRST, other_body(22.9, 24, fence=2, of="tock")], None),
        (TWO_PLACES, [FIRST, other_body(22.8, 24, fence=2), other_body(22.9, 24, fence=3, of="tock")], "above_limit"),
        (ONE_PLACE, [FIRST, other_body(22.9, 24, fence=2, of="tock"), death(21)], "above_limit"),
        (ONE_PLACE, [DIED, other_body(22.9, 24, fence=2), death(21)], None),
    ],
)  # fmt: skip
def test_how_many_run_at_once(waits, groups, found):
    """Two at once of an entry or a limit that says otherwise are a fault, but for what the promise leaves open."""
    verdict = verdict_of(*groups, ends=5, waits=waits)
    assert [name for name in ("beside", "above_limit") if getattr(verdict, name)] == ([found] if found else [])
    assert verdict.kept == (found is None)


def test_a_window_that_a_newer_one_waited_for_is_skipped():
    """It isn't lost; the newest one is, if it never ran."""
    events = [{"kind": "clock", "epoch": 0.0}, *other_body(31, 32, fence=1, start=30)]
    verdict = judge(events, {"tick": 10.0}, 5, 45, LEASE, Waits(in_turn={"tick"}, skips={"tick"}))
    assert verdict.skipped == 2
    assert verdict.lost == [("tick", text_of(40))]
