"""celery-once-beat: every scheduled window once, with any number of beats and workers.

The names of this package are loaded when they are first used, so that ``celery --help`` and processes that only send
tasks don't pay for the store. Its parts, lowest first. Each imports only those that stand before it, through their
``__init__``; the core imports no feature, but calls those that ``features`` lists:

- ``errors``, ``outcomes``, ``identity``, ``wording``, ``signals``, ``clock``: used everywhere
- ``options``: every option once, with its check
- ``settings``: the app's ``once_beat_…`` settings, validated · ``embedded``: a server of one's own, for tests
- ``rules``: when windows start, which of them run, what is set up wrongly; pure
- ``windows``: what a window is, and its headers
- ``schedules``: schedules that compose, definitions that are made at run time, and their JSON; pure
- ``store``: the only importer of redis; its verbs decide · ``logs``: the ``extra`` of log lines
- ``background``: threads
- ``beat``: claims, publishes, recovers · ``worker``: begins, renews, ends
- ``features``: what hangs on hooks of these: overlap and limits, alerts, keys, orders, run-time schedules,
  rows in users' transactions
- ``testing``: on beat and worker
- ``status``: how beats, entries and windows stand, as typed values
- ``client``: schedules set at run time, and what people order, from any process
- ``web``: the board and the metrics over HTTP · ``board``: its public name
- ``cli``: ``celery once …`` · ``contrib``: Django's scheduler, admin and task
- ``pytest_plugin``: the fixtures of ``testing``

One window, in the order of the files: ``beat/scheduler``, ``beat/entries``, ``beat/claiming``, ``store/verbs``,
``beat/publishing``; then ``worker/task``, ``worker/execution``, ``worker/leases``, ``worker/base``. Overdue:
``beat/recovery``. Shown: ``lookup/lookup``, ``status/report``.

PYTEST_DONT_REWRITE: pytest would warn of it wherever this is imported before pytest looks for plugins.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .beat import OnceScheduler, OnceSchedulerMixin
    from .client import AsyncSchedules, Schedule, Schedules
    from .features.keyed import once
    from .schedules import OneOff, RRule, register_schedule_codec
    from .windows import Window
    from .worker import OnceTask, current_window

__version__ = "0.1.0"

__all__ = (
    "AsyncSchedules",
    "OnceScheduler",
    "OnceSchedulerMixin",
    "OnceTask",
    "OneOff",
    "RRule",
    "Schedule",
    "Schedules",
    "Window",
    "current_window",
    "once",
    "register_schedule_codec",
)

if not TYPE_CHECKING:  # a type checker would believe that any name is here
    _NAMES = {
        "beat": ("OnceScheduler", "OnceSchedulerMixin"),
        "client": ("AsyncSchedules", "Schedule", "Schedules"),
        "features.keyed": ("once",),
        "schedules": ("OneOff", "RRule", "register_schedule_codec"),
        "windows": ("Window",),
        "worker": ("OnceTask", "current_window"),
    }
    _HOME = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
