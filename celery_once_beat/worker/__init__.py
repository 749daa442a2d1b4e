"""A worker: begins windows, runs their bodies under a lease, and records how they ended."""

from __future__ import annotations

from .keyed import once
from .task import OnceTask, current_window

__all__ = (
    "OnceTask",
    "current_window",
    "once",
)
