"""The key is the lock: it expires after a while, or is deleted after the job."""

import time
import uuid

from redis import Redis

from examples.ways import node

from . import EVERY, JOBS

EXPIRES = 2  # seconds, instead of 30
WAIT = 0.5


def main():
    node.side_by_side(each_time, JOBS.items())


def each_time(name, seconds):
    redis = Redis.from_url(node.URL, decode_responses=True)
    for now in node.timer(EVERY):
        mine = str(uuid.uuid4())
        redis.set(name, mine, nx=True, ex=EXPIRES)
        if redis.get(name) != mine:
            continue
        with node.run(name, now):
            time.sleep(seconds)
        time.sleep(WAIT)
        redis.delete(name)


if __name__ == "__main__":
    main()
