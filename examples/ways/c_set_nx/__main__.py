"""Way C: ``python -m examples.ways.c_set_nx``."""

from __future__ import annotations

import sys

from examples.ways.command import main
from examples.ways.story import Kill, StandStill, Way, plain

from . import EVERY, JOBS

WAY = Way(
    "C",
    "SET NX EX",
    "examples.ways.c_set_nx",
    every=EVERY,
    # Long after the report's end, which the same node may have run: it is recorded by then, also on a busy machine.
    acts=[StandStill(0, seconds=2.5), Kill(2, entry="export", after=1.5)],
    entries=[(job, EVERY) for job in JOBS],
    once=plain,
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
