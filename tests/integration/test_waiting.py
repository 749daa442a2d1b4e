"""Windows that wait for each other, or for a slot of a limit: real beats and workers."""

from __future__ import annotations

import itertools

from processes import wait_until
from system import System, rare

#: Nobody dies of it on a busy machine.
LEASE = {"once_beat_lease": 30.0, "once_beat_start_timeout": 600.0}
LIMITED = {"task": "apps.once_app.work", "every": 2.0, "args": [1.0], "options": {"once": {"limit": "reports"}}}


def test_what_waited_begins_soon(system: System) -> None:
    """For its turn or for a slot: a beat that lives finds it at once, not only at its usual sweep, 5 s later."""
    once, soon = {"overlap": "buffer_all"}, rare()
    system.entries = {"turn": {"task": "apps.once_app.work", "every": 1.0, "args": [1.2], "options": {"once": once}}}
    for number in range(4):
        system.entries[f"slot-{number}"] = {**LIMITED, **soon}
    system.settings = {**LEASE, "once_beat_limits": {"reports": 1}, "once_beat_recovery_interval": 5.0}
    system.worker(concurrency=3).wait_ready()
    beat = system.beat()

    def ran(entries: set[str]) -> list[tuple[float, float]]:
        ends = [event for event in system.ledger.read("finish") if event["entry"] in entries]
        starts = [system.ledger.read("start", entry=end["entry"], fence=end["fence"])[0] for end in ends]
        return sorted((start["mono"], end["mono"]) for start, end in zip(starts, ends, strict=True))

    for entries in ({"turn"}, system.entries.keys() - {"turn"}):
        times = wait_until(lambda of=entries: len(found := ran(of)) >= 4 and found, "four have run", 60)
        gaps = [start - end for (_, end), (start, _) in itertools.pairwise(times[:4])]
        assert 0 < sorted(gaps)[1] < 3, gaps
    begun = [event["start"] for event in system.ledger.read("start", entry="turn")]
    assert begun == sorted(begun)
    assert "is overdue" not in beat.log
    beat.stop()
