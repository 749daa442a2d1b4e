"""Schedules that are set at run time, from any process: a web handler, a script, a task."""

from __future__ import annotations

from celery_once_beat.features.orders.orders import Abandoned, OrderedBy, OrderedWindow, Orders, log_order, newest_start
from celery_once_beat.schedules import Change

from .asynchronous import AsyncSchedules
from .file import Edit, apply, compare, read_file, write_file
from .schedules import Schedules
from .value import Schedule, Wanted
