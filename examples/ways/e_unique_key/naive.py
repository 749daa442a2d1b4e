"""The insert decides, and the key stays in the table."""

import sqlite3
import time
from contextlib import closing

from examples.ways import node

from . import JOBS


def main():
    node.side_by_side(each_time, JOBS.items())


def each_time(name, times):
    every, seconds = times
    with closing(node.database()) as db:
        for now in node.timer(every):
            try:
                db.execute("INSERT INTO runs VALUES (?)", (f"{name}:{now:.0f}",))  # exp_usr_cart:15-01-2021
            except sqlite3.IntegrityError:
                continue
            with node.run(name, now):
                time.sleep(seconds)


if __name__ == "__main__":
    main()
