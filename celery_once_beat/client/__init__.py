"""Schedules that are set at run time, from any process: a web handler, a script, a task."""

from __future__ import annotations

from celery_once_beat.schedules import Change, Schedule

from .asynchronous import AsyncSchedules
from .file import Edit, apply, compare, read_file, write_file
from .orders import Abandoned, OrderedWindow, Orders, Said, log_order
from .schedules import Schedules
