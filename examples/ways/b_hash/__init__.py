"""Way B: a hash of the work, modulo the number of nodes, says which node does it."""

import time

#: Seconds, instead of a day; and instead of the hour after which what failed is tried again.
EVERY, AGAIN_AFTER = 5, 2
WORK = ("backups", "exports", "invoices", "mails", "prices", "reminders")


def do(work: str, *, first: bool) -> None:
    """The work itself; of the reminders the first try for each window fails."""
    time.sleep(0.4)
    if first and work == "reminders":
        raise ConnectionError(work)
