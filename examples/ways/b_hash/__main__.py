"""Way B: ``python -m examples.ways.b_hash``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from examples.ways.command import main
from examples.ways.stage import Stage
from examples.ways.story import Kill, StandStill, Way
from examples.ways.verdict import Owed

from . import EVERY, WORK


def remark(stage: Stage, _: str, owed: Sequence[Owed]) -> str:
    """How often what failed was tried again."""
    starts, failures = (
        Counter((event.entry, event.start) for event in stage.events if event.kind == kind)
        for kind in ("start", "failed")
    )
    failed = [(window.entry, window.start) for window in owed if failures[window.entry, window.start]]
    again = ", ".join(str(starts[window] - 1) for window in failed)
    return f"windows that failed at first: {len(failed)}; so often each was tried again: {again}"


WAY = Way(
    "B",
    "consistent hash",
    "examples.ways.b_hash",
    every=EVERY,
    acts=[StandStill(0, seconds=1.0), Kill(1, entry="invoices", after=0.2)],
    entries=[(work, EVERY) for work in WORK],
    scheduled=WORK,
    remark=remark,
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
