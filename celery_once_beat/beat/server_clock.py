"""The server's time, as this process measures it.

The server's time is measured in a round trip that is made anyway. Between two of them ``steady`` counts. So a wall
clock that is wrong, or jumps, moves no window.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery_once_beat.clock import steady
from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import MOST_APART

logger = get_logger(__name__)

#: A cursor is the start of a claimed window. One that lies further ahead means that the server's clock was wrong when
#: the window was claimed, or is wrong now.
CURSOR_AHEAD = timedelta(seconds=60)
#: A round trip that takes more seconds, repetitions included, says too little about the time.
SLOW = 0.2


class ServerClock:
    """Server time = the last measured one + what has passed since."""

    def __init__(self) -> None:
        self._server: datetime | None = None
        self._at = 0.0
        self._warned = False

    def now(self) -> datetime:
        """Aware UTC; this machine's own time until the first measurement."""
        return self.at(steady())

    def at(self, moment: float) -> datetime:
        """The same at a ``moment`` (``steady``)."""
        if self._server is None:
            return datetime.now(timezone.utc) + timedelta(seconds=moment - steady())
        return self._server + timedelta(seconds=moment - self._at)

    @property
    def offset(self) -> float:
        """Seconds by which this machine's clock is ahead of the server's."""
        return (datetime.now(timezone.utc) - self.now()).total_seconds()

    def measured(self, server: datetime, sent: float, received: float) -> None:
        """The server said ``server`` (aware UTC) between ``sent`` and ``received`` (``steady``)."""
        if received - sent > SLOW and self._server is not None:
            known = (self._server - server).total_seconds() + received - self._at
            if 0 <= known <= received - sent:
                return  # the earlier measurement is better
        # It was somewhere in the round trip. Taken as its end, this clock can only be late, and no window runs early.
        self._server, self._at = server, received
        apart = self.offset
        if abs(apart) <= MOST_APART:
            self._warned = False
        elif not self._warned:
            self._warned = True
            text = "once: this machine's clock is %.1f s %s the Redis server's; the server's counts"
            where = "ahead of" if apart > 0 else "behind"
            logger.warning(text, abs(apart), where, extra=about("clock_apart", offset=apart))
