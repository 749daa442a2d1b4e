"""A beat: claims windows, publishes their messages, and recovers what is overdue."""

from __future__ import annotations

from .broker import broadcast_entries
from .entries import RETRY_AFTER, Row, Rows
from .publishing import Job
from .schedule import Lineup, describe, line_up
from .scheduler import OnceScheduler, OnceSchedulerMixin
from .server_clock import CURSOR_AHEAD, ServerClock

__all__ = (
    "CURSOR_AHEAD",
    "RETRY_AFTER",
    "Job",
    "Lineup",
    "OnceScheduler",
    "OnceSchedulerMixin",
    "Row",
    "Rows",
    "ServerClock",
    "broadcast_entries",
    "describe",
    "line_up",
)
