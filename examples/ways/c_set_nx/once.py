"""The key is the window: it outlives the job, and the lease is renewed for as long as the job takes."""

import time
from datetime import timedelta

from celery_once_beat import once
from examples.ways import node

from . import EVERY, JOBS


def main():
    node.side_by_side(each_time, JOBS.items())


def each_time(name, seconds):
    turn = once(name, every=timedelta(seconds=EVERY), url=node.URL, lease=2)
    for _ in node.timer(0.5):  # oftener than the job is due: who asks next takes over from a dead node
        with turn as window:
            if window:
                with node.run(name, window.start):
                    time.sleep(seconds)


if __name__ == "__main__":
    main()
