"""celery-once-beat: every scheduled window once, with any number of beats and workers.

The names of this package are loaded when they are first used, so that ``celery --help`` and processes
that only send tasks don't pay for the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .keyed import once
    from .scheduler import OnceScheduler, OnceSchedulerMixin
    from .task import OnceTask, current_window
    from .windows import Window

__version__ = "0.1.0"

__all__ = ("OnceScheduler", "OnceSchedulerMixin", "OnceTask", "Window", "current_window", "once")

if not TYPE_CHECKING:  # a type checker would believe that any name is here
    _HOME = {
        "OnceScheduler": "scheduler",
        "OnceSchedulerMixin": "scheduler",
        "OnceTask": "task",
        "Window": "windows",
        "current_window": "task",
        "once": "keyed",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
