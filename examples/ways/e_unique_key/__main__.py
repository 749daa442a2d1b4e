"""Way E: ``python -m examples.ways.e_unique_key``."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing

from examples.ways.command import main
from examples.ways.stage import FailedError, Stage
from examples.ways.story import OWN, Kill, StandStill, Way
from examples.ways.verdict import Owed

from . import DAY, JOBS


def prepare(db: sqlite3.Connection) -> None:
    """The table of keys."""
    db.execute("CREATE TABLE runs (key PRIMARY KEY)")


def remark(stage: Stage, method: str, _: Sequence[Owed]) -> str:
    """What is left of the keys; raises FailedError if one of Redis never expires."""
    if method == OWN:
        with closing(stage.database()) as db:
            (count,) = db.execute("SELECT count(*) FROM runs").fetchone()
        return f"{count} keys are in the table, until somebody deletes them"
    keys = stage.keys("once:*")
    forever = [key for key, left in keys.items() if left == -1]
    if forever:
        raise FailedError(f"keys that never expire: {', '.join(forever)}")
    left = sum(":claim:" in key or ":run:" in key for key in keys)
    begun = len({(event.entry, event.start) for event in stage.events})
    return f"{left} keys are left of {begun} windows that had 2 each; all keys expire"


WAY = Way(
    "E",
    "unique key",
    "examples.ways.e_unique_key",
    every=DAY,
    acts=[StandStill(0, seconds=1.0), Kill(1, entry="exp_usr_cart")],
    entries=[(name, every) for name, (every, _) in JOBS.items()],
    scheduled=list(JOBS),
    prepare=prepare,
    remark=remark,
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
