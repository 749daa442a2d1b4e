"""SIGTERM and SIGINT, held back for a moment: what has been claimed is published and confirmed before a beat ends.

At Python's level: a process that is started meanwhile inherits the mask of blocked signals, but no handler.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ("held_back",)


class _Note:
    """Stands in for the handler of one signal, and notes that it came."""

    def __init__(self, number: signal.Signals) -> None:
        self.came = False
        self._number = number
        self._before: Any = signal.getsignal(number)
        self._process = os.getpid()
        # One that is ignored needs no holding back; one that Python hasn't set couldn't be set again.
        self._held = self._before not in (signal.SIG_IGN, None)
        if self._held:
            signal.signal(number, self)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        if os.getpid() != self._process:
            self.release()  # a forked child holds nothing back

    def release(self) -> None:
        """Put the handler back, unless somebody has set another one; deliver what came."""
        now: object = signal.getsignal(self._number)
        if self._held and now is self:
            signal.signal(self._number, self._before)
        self._held = False
        if self.came:
            self.came = False
            signal.raise_signal(self._number)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back SIGTERM and SIGINT for the block; what came is delivered behind it.

    Only where this thread is the one in which Python runs handlers. Elsewhere, in a worker's embedded beat say,
    recovery sees to what was claimed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    notes: list[_Note] = []
    try:
        notes += [_Note(signal.SIGTERM), _Note(signal.SIGINT)]
        yield
    finally:
        _release(notes)


def _release(notes: list[_Note]) -> None:
    """Release each, also where the handler of an earlier one raises."""
    if notes:
        try:
            notes[0].release()
        finally:
            _release(notes[1:])
