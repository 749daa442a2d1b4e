"""Measure how long a call holds the GIL."""

import threading
import time


def longest_pause(call):
    """The longest time in seconds for which no other thread ran while `call` did."""
    longest, last, over = 0.0, time.monotonic(), threading.Event()

    def watch():
        nonlocal longest, last
        while not over.wait(0.01):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        longest = max(longest, time.monotonic() - last)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        over.set()
        watcher.join()
    return longest
