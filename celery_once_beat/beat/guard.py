"""The guard around whatever belongs to one entry: its definition, schedule, options, task, hooks.

If it raises or takes too long, that is the trouble of this entry alone. The time limit is a signal, which Python
handles between two steps of Python code, or while a call waits. So it holds in the main thread, where ``celery beat``
runs. It doesn't hold in a beat within a worker's thread, or in C code that never returns. An application that uses
SIGALRM itself keeps it, and has no limit. Publishing has none either: a connection mustn't be cut off in the middle.
The time that log handlers and signal receivers take doesn't count.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not even typeshed has it
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from celery.utils.dispatch import signal as dispatch

from celery_once_beat.errors import OnceError, StoreUnavailableError, from_signal
from celery_once_beat.wording import shown

#: Seconds between two ticks of the clock, and how many are too many. After a freeze the ticks that were missed come as
#: one, so a process that was frozen for an hour isn't over its limit.
_TICK = 0.2
_MOST_TICKS = 5
#: The files whose code calls what belongs to the application, and to no entry.
_OF_ALL = (logging.__file__, dispatch.__file__)


class TookTooLong(BaseException):  # no Exception, so that what a user's code catches doesn't swallow it
    """What belongs to one entry took too long."""


class _Clock:
    """Counts ticks while a block runs in the main thread."""

    def __init__(self) -> None:
        self.running = False
        self._ticks = 0
        #: The frame that has the block.
        self._owner: FrameType | None = None

    def start(self) -> bool:
        """Begin to count; returns False where it can't, or counts already."""
        if self.running or threading.current_thread() is not threading.main_thread():
            return False
        handler = _signal.getsignal(signal.SIGALRM)  # signal's own looks for an enum of it each time
        if handler != self._tick:
            if handler != signal.SIG_DFL:
                return False
            signal.signal(signal.SIGALRM, self._tick)
        self._owner = sys._getframe()  # noqa: SLF001  # as inspect's currentframe()
        while self._owner is not None and self._owner.f_code.co_filename == __file__:
            self._owner = self._owner.f_back
        self.running, self._ticks = True, 0
        signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
        return True

    def stop(self) -> None:
        self.running, self._owner = False, None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        """Raise in what the block calls, and nowhere else: raised while the block ends, it would let the clock run."""
        called = frame is not None and frame is not self._owner and frame.f_code.co_filename != __file__
        while frame is not None and frame is not self._owner:
            if frame.f_code.co_filename in _OF_ALL:
                return
            frame = frame.f_back
        self._ticks += 1
        if self.running and called and self._ticks >= _MOST_TICKS:
            raise TookTooLong(f"it took longer than {_TICK * _MOST_TICKS:g} s")


_clock = _Clock()


class within_time:  # noqa: N801  # it is called, as contextlib's are
    """Raise TookTooLong where the block takes longer than a second; again and again, until the block ends."""

    def __enter__(self) -> None:
        """Start the clock."""
        self._started = _clock.start()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        if self._started:
            _clock.stop()


class guard:  # noqa: N801  # no generator: four blocks a window take 50 calls less
    """Call ``failed`` with why the block raised, or took longer than a second where it is ``timed``.

    Where the block ``asks`` the store, StoreUnavailableError goes through: it concerns all entries. Elsewhere it comes
    from a user's code that asks another Redis, and is as any other error.
    """

    def __init__(self, failed: Callable[[str], object], *, timed: bool = True, asks: bool = False) -> None:
        self._failed, self._timed, self._asks = failed, timed, asks
        self._started = False

    def __enter__(self) -> None:
        """Start the clock."""
        if self._timed:
            self._started = _clock.start()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Call ``failed`` if the block raised; returns whether it was called."""
        if self._started:
            _clock.stop()
        if error is None or from_signal(error) or (self._asks and isinstance(error, StoreUnavailableError)):
            return False
        self._failed(_why(error))  # whatever a user's code raises: sys.exit(), a panic of an extension
        return True


def _why(error: BaseException) -> str:
    """Say what a block raised, whose text is a user's code, too."""
    if isinstance(error, (OnceError, TookTooLong)):
        return str(error)
    try:
        with within_time():
            return shown(error)
    except TookTooLong:
        return f"<{type(error).__name__}>"
