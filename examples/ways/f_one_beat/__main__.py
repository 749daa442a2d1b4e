"""Way F: ``python -m examples.ways.f_one_beat``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from examples.ways.command import main
from examples.ways.stage import NODES, Stage
from examples.ways.story import OWN, Kill, StandStill, Way, celery
from examples.ways.verdict import Owed

from . import EVERY, REDBEAT


def remark(stage: Stage, method: str, owed: Sequence[Owed]) -> str:
    """How long nothing ran, and whose lock it was."""
    lock = f", with a lock of {'RedBeat' if REDBEAT else 'this example'}'s" if method == OWN else ""
    first, last = owed[0].start, owed[-1].start
    times = [event.at for event in stage.events if event.kind == "start" and first <= event.start <= last]
    gap = max(after - before for before, after in pairwise(times))
    return f"the longest time from one run to the next was {gap:.1f} s{lock}"


WAY = Way(
    "F",
    "one beat, a lock",
    "examples.ways.f_one_beat",
    every=EVERY,
    acts=[StandStill(0, seconds=1.0), Kill(2, node=NODES[0])],
    windows=8,
    entries=[("report", EVERY)],
    scheduled=["report"],
    naive=celery,
    remark=remark,
    in_order=True,  # so that node-1 has the lock
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
