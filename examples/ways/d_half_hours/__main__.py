"""Way D: ``python -m examples.ways.d_half_hours``."""

from __future__ import annotations

import json
import sqlite3
import sys

from examples.ways.command import main
from examples.ways.story import Join, Kill, StandStill, Way
from examples.ways.verdict import Owed, windows_of

from . import HALF_HOUR

#: Each with the half hours from one mail to the next, which one of them, and where the user lives.
USERS = [
    ("ann", 1, 0, "Europe/Berlin"),
    ("bob", 1, 0, "America/New_York"),
    ("carl", 2, 0, "Asia/Kolkata"),
    ("dora", 2, 1, "Europe/Berlin"),
]
#: Joins while the nodes run, for each half hour from that one of the story on.
JOINS = Join(3, "erin")


def prepare(db: sqlite3.Connection) -> None:
    """The users, none of whom has got a mail yet."""
    db.execute("CREATE TABLE users (name, every, at, since DEFAULT 0, uuid DEFAULT '', sent DEFAULT 0)")
    db.executemany("INSERT INTO users (name, every, at) VALUES (?, ?, ?)", [user[:3] for user in USERS])


def owed(after: float, until: float) -> list[Owed]:
    """The mails that the users chose."""
    return [
        *(
            window
            for name, every, at, _ in USERS
            for window in windows_of(name, HALF_HOUR, after, until)
            if window.start // HALF_HOUR % every == at
        ),
        *windows_of(JOINS.user, HALF_HOUR, after + JOINS.window * HALF_HOUR, until),
    ]


WAY = Way(
    "D",
    "UUID, time stamp",
    "examples.ways.d_half_hours",
    every=HALF_HOUR,
    windows=5,
    acts=[StandStill(0, seconds=2.0), Kill(1, after=0.4), JOINS],
    owed=owed,
    scheduled=[f"mails/{name}" for name, *_ in USERS],
    prepare=prepare,
    first=["sign-up", json.dumps({name: {"every": every, "at": at, "zone": zone} for name, every, at, zone in USERS})],
)

if __name__ == "__main__":
    sys.exit(main([WAY]))
