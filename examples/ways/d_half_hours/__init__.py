"""Way D: users choose at which half hours they get a mail; who has sent it last, and when, stands in their row."""

import sqlite3

#: Seconds, instead of half an hour.
HALF_HOUR = 5


def choosers(db: sqlite3.Connection, start: float) -> list[str]:
    """The users who chose the half hour that starts then (Unix time), by name."""
    chose = "SELECT name FROM users WHERE ? % every = at AND ? >= since"
    return [name for (name,) in db.execute(chose, (start // HALF_HOUR, start))]
