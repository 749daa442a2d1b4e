"""Each node does the work that hashes to its number; what failed is pending, once, and tried again later."""

from zlib import crc32

from examples.ways import node

from . import AGAIN_AFTER, EVERY, WORK, do

NODES = 3
NUMBER = int(node.NAME.rpartition("-")[2]) - 1


def main():
    mine = [work for work in WORK if crc32(work.encode()) % NODES == NUMBER]
    pending = {}  # work: when, and for which window
    for now in node.timer(1):
        if now % EVERY == 0:
            for work in mine:
                if not attempt(work, now, first=True):
                    pending[work] = now + AGAIN_AFTER, now
        for work, (when, start) in list(pending.items()):
            if when <= now:
                del pending[work]
                attempt(work, start, first=False)


def attempt(work, start, *, first):
    try:
        with node.run(work, start):
            do(work, first=first)
    except ConnectionError:
        return False
    return True


if __name__ == "__main__":
    main()
