"""Way A: ``python -m examples.ways.a_lock_row``."""

from __future__ import annotations

import sqlite3
import sys

from examples.ways.command import main
from examples.ways.story import Kill, StandStill, Way

from . import EVERY


def prepare(db: sqlite3.Connection) -> None:
    """The row."""
    db.execute("CREATE TABLE lock (node, state, started)")
    db.execute("INSERT INTO lock VALUES ('', 'done', 0)")


WAY = Way(
    "A",
    "lock row",
    "examples.ways.a_lock_row",
    every=EVERY,
    acts=[StandStill(0, seconds=1.6), Kill(1)],
    entries=[("totals", EVERY)],
    scheduled=["totals"],
    prepare=prepare,
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
