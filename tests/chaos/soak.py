"""Everything at once, for as long as is asked for: ``make chaos MINUTES=60 BROKER=rabbitmq``.

Its name keeps it out of ``make test``: it wants the machine for itself, since a process that gets no time for as
long as its lease is out of contact, whoever starves it.
"""

from __future__ import annotations

import time

from chaos.brokers import start_broker
from chaos.cast import Cast
from chaos.checker import Waits, judge
from chaos.entries import ENTRIES, IN_TURN, LEASE, LIMITS, SHARED, SKIPS
from chaos.faults import FAULTS, plan
from chaos.havoc import Havoc
from chaos.report import write_report
from processes import wait_until

GRIDS = {entry: every for entry, (_, every, _) in ENTRIES.items()}
WAITS = Waits(IN_TURN, SKIPS, {limit: (SHARED[limit], most) for limit, most in LIMITS.items()})


def test_chaos(start_redis, procs, ledger, tmp_path, request):
    """Whatever is killed, frozen, cut, flushed or sent twice: no window is lost, none is done twice."""
    seed, minutes = request.config.getoption("seed"), request.config.getoption("minutes")
    every, kind = request.config.getoption("every"), request.config.getoption("broker")
    seconds = minutes * 60
    faults = plan(seed, seconds, every, FAULTS[kind])
    with (
        start_broker(kind, start_redis) as broker,
        Cast(tmp_path, procs, ledger, start_redis(appendonly=True), broker) as cast,
    ):
        cast.tend()
        wait_until(lambda: {e["entry"] for e in ledger.read("finish")} == set(GRIDS), "all entries run", 60)
        begin = time.monotonic()
        havoc = Havoc(cast)
        havoc.play(faults, lambda: time.monotonic() < begin + seconds)
        end = time.monotonic()

        def verdict():
            cast.tend()
            return judge(ledger.read(), GRIDS, begin, end, LEASE, WAITS)

        # What didn't run meanwhile has as long again, beside what is due.
        until = end + max(300, seconds)
        wait_until(lambda: not verdict().lost or time.monotonic() > until, "", until - end + 100, every=2)
        calm = verdict()
        procs.end()
        write_report(request.config.getoption("report"), calm, havoc, seed, minutes, every)
        cast.system.check_conservation()
    assert calm.kept, f"{calm}\n{stories(ledger.read(), calm)}"
    # kombu's Redis transport ends a worker now and then when its broker dies; that is none of ours.
    ours = [ended for ended in cast.ended_alone if ended.startswith("beat") or "celery_once_beat/" in ended]
    assert not ours, "\n".join(ours)


def stories(events, verdict):
    """All lines about the windows that went wrong, and the faults."""
    wrong = {window for found in vars(verdict).values() if isinstance(found, list) for window in found[:10]}
    told = [e for e in events if e["kind"] in ("fault", "over") or (e.get("entry"), e.get("start")) in wrong]
    return "\n".join(map(str, sorted(told, key=lambda event: event["at"])))
