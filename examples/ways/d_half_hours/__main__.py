"""Way D: ``python -m examples.ways.d_half_hours``."""

from __future__ import annotations

import sqlite3
import sys

from examples.ways.command import main
from examples.ways.story import Kill, StandStill, Way
from examples.ways.verdict import Owed, windows_of

from . import HALF_HOUR

#: Each with the half hours from one mail to the next, and which one of them.
USERS = [("ann", 1, 0), ("bob", 1, 0), ("carl", 2, 0), ("dora", 2, 1)]


def prepare(db: sqlite3.Connection) -> None:
    """The users, none of whom has got a mail yet."""
    db.execute("CREATE TABLE users (name, every, at, uuid DEFAULT '', sent DEFAULT 0)")
    db.executemany("INSERT INTO users (name, every, at) VALUES (?, ?, ?)", USERS)


def owed(after: float, until: float) -> list[Owed]:
    """The mails that the users chose."""
    return [
        window
        for name, every, at in USERS
        for window in windows_of(name, HALF_HOUR, after, until)
        if window.start // HALF_HOUR % every == at
    ]


WAY = Way(
    "D",
    "UUID, time stamp",
    "examples.ways.d_half_hours",
    every=HALF_HOUR,
    acts=[StandStill(0, seconds=2.0), Kill(1, after=0.4)],
    owed=owed,
    scheduled=["half-hour"],
    prepare=prepare,
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
