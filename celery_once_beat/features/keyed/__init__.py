"""Windows of user-defined keys: ``once()`` and ``apply_once()``."""

from __future__ import annotations

import celery_once_beat.worker  # noqa: F401  # first: it imports this feature's part of a task

from .task import once

__all__ = ("once",)
