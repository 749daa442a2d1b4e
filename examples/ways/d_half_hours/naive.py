"""A node that finds no recent time stamp in the user's row writes its own, with a UUID, and sends the mail."""

import sys
import time
import uuid
from contextlib import closing

from examples.ways import node

from . import HALF_HOUR, choosers

TOLERANCE = HALF_HOUR / 6  # five minutes


def main():
    with closing(node.database()) as db:
        for now in node.timer(HALF_HOUR):
            for user in choosers(db, now):
                if mine(db, user):
                    with node.run(user, now):
                        time.sleep(0.6)


def mine(db, user):
    number, now = str(uuid.uuid4()), time.time()
    db.execute("UPDATE users SET uuid = ?, sent = ? WHERE name = ? AND sent < ?", (number, now, user, now - TOLERANCE))
    return db.execute("SELECT uuid FROM users WHERE name = ?", (user,)).fetchone() == (number,)


def join(user, start):
    with closing(node.database()) as db:
        db.execute("INSERT INTO users (name, every, at, since) VALUES (?, 1, 0, ?)", (user, float(start)))


if __name__ == "__main__":
    if sys.argv[1:]:
        join(*sys.argv[1:])
    else:
        main()
