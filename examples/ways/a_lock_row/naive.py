"""All nodes write their name into the row, wait, and read who has it; a second timer takes over from a dead one."""

import time
from contextlib import closing
from threading import Thread

from examples.ways import node

from . import EVERY

WAIT = 1.0
EXPECTED = 2.0  # a run takes no longer, or so one hopes


def main():
    Thread(target=second_timer, daemon=True).start()
    for now in node.timer(EVERY):
        compete(now)


def compete(now):
    with closing(node.database()) as db:
        db.execute("UPDATE lock SET node = ?, state = 'claimed', started = ?", (node.NAME, time.time()))
        time.sleep(WAIT)
        if db.execute("SELECT node FROM lock").fetchone() != (node.NAME,):
            return
        db.execute("UPDATE lock SET state = 'running', started = ?", (time.time(),))
        with node.run("totals", now, since=now - EVERY):  # of the hour that ends now
            time.sleep(1)
        db.execute("UPDATE lock SET state = 'done'")


def second_timer():
    while True:
        time.sleep(0.5)
        with closing(node.database()) as db:
            state, started = db.execute("SELECT state, started FROM lock").fetchone()
        if state == "running" and time.time() > started + EXPECTED:
            compete(time.time())


if __name__ == "__main__":
    main()
