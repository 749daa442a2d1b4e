"""A worker: begins windows, runs their bodies under a lease, and records how they ended."""

from __future__ import annotations

from .calls import Running, notes_of
from .starting import check_tasks
from .task import OnceTask, current_window

__all__ = ("OnceTask", "Running", "check_tasks", "current_window", "notes_of")
