"""How entries, windows and beats stand, for people: typed, with datetimes. ``metrics`` needs an extra of its own."""

from __future__ import annotations

from celery_once_beat.lookup import BeatStatus

from .coming import coming_starts
from .judgements import JUDGEMENTS
from .lineup import LateWindow, Listed, deadline_of, late_last, late_now, line_up
from .poll import Sight, View, take_snapshot
from .report import EntryStatus, Report, WindowStatus, as_json, make_report
from .worries import StuckQueue, Trouble, WorkerStatus, cause_of, paused_words
