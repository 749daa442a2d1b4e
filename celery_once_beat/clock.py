"""A clock that goes on while the machine sleeps."""

from __future__ import annotations

import time

__all__ = ("steady",)

#: Linux has a clock that goes on in suspend, as the server's does. Elsewhere the monotonic clock has to do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds since some moment; they pass in suspend too, where ``time.monotonic()`` stands still on Linux.

    For what is trusted for so long: a lease, a claim, a measured time. Not to be compared with other clocks.
    """
    return time.clock_gettime(_CLOCK)
