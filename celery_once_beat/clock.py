"""A clock that runs while the machine sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

#: Linux has a clock that runs in suspend, as the server's does. Other systems have only the monotonic clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


#: Seconds since some moment; they pass in suspend too, where ``time.monotonic()`` stops on Linux. It says for how long
#: a lease, a claim or a measured time may be trusted. Don't compare it with other clocks.
steady: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
