"""SIGTERM and SIGINT, held back for a moment, so that what was claimed is published and confirmed before a beat ends.

By Python's handlers, since a process that is started meanwhile would inherit a mask of blocked signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any


class _Note:
    """Stands in for the handler of one signal, and notes that it came."""

    def __init__(self, number: signal.Signals) -> None:
        self.came = False
        self._number = number
        self._before: Any = signal.getsignal(number)
        self._process = os.getpid()
        # An ignored one needs no holding back; None is a handler that Python didn't set and couldn't restore.
        if self._before not in (signal.SIG_IGN, None):
            signal.signal(number, self)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        if os.getpid() != self._process:
            self.release()  # a forked child

    def release(self) -> None:
        """Restore the handler, unless somebody has set another one; deliver the signal if it came."""
        now: object = signal.getsignal(self._number)
        if now is self:
            signal.signal(self._number, self._before)
        if self.came:
            self.came = False
            signal.raise_signal(self._number)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back SIGTERM and SIGINT during the block, and deliver them after it.

    That works in the main thread only, where Python runs handlers. In another one (a worker's embedded beat, say)
    recovery publishes what was claimed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:  # releases both, even if a handler raises
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(_Note(number).release)
        yield
