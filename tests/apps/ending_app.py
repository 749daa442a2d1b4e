"""The plain app, and a beat that is told to end at the worst moment: while Python finalizes an object."""

from __future__ import annotations

import os
import signal

from apps.once_app import app

from celery_once_beat import OnceScheduler

__all__ = ("BetweenTicks", "InTick", "app")


class _Last:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):  # the handler runs here, and what it raises is printed and forgotten
            pass


class InTick(OnceScheduler):
    """Is told so in the midst of its second look."""

    _looks = 0

    def on_sweep(self) -> None:
        self._looks += 1
        if self._looks == 2:
            _Last()


class BetweenTicks(OnceScheduler):
    """Is told so behind a tick."""

    def tick(self, *args: object, **kwargs: object) -> float:
        delay = super().tick(*args, **kwargs)
        _Last()
        return delay
