"""Schedules that are set at run time, from any process: a web handler, a script, a task."""

from __future__ import annotations

from celery_once_beat.schedules import Change, Schedule

from .asynchronous import AsyncSchedules
from .schedules import OrderedWindow, Schedules

__all__ = ("AsyncSchedules", "Change", "OrderedWindow", "Schedule", "Schedules")
