"""Schedules that are values, and definitions that are made at run time: what one says, and how it is written as JSON.

Pure: no I/O but for the files of ``calendar_file``, no clock.
"""

from __future__ import annotations

from celery_once_beat.rules import find_zone

from .codecs import read_schedule, register_schedule_codec, write_schedule
from .composed import Composed, between, excluding, union
from .cron import cron
from .definition import Change, Definition, check_name, check_words, naming
from .intervals import every
from .loaded import LoadedDefinition
from .one_off import OneOff, at
from .periods import Period
from .rrule import RRule
from .words import describe
