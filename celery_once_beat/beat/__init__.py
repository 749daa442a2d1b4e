"""A beat: claims windows, publishes their messages, and recovers what is overdue."""

from __future__ import annotations

from .broker import broadcast_entries
from .entries import Entries
from .entry import BeatEntry
from .guard import guard
from .schedule import LoadedSchedule, as_loaded, load_schedule
from .scheduler import OnceScheduler, OnceSchedulerMixin
from .server_clock import CURSOR_AHEAD, ServerClock
from .sources import Changes, ScheduleSource, log_left_out
from .timetable import Timetable
