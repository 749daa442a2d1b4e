"""How entries, windows and beats stand, for people: typed, with datetimes. ``metrics`` needs an extra of its own."""

from __future__ import annotations

from .poll import Sight, View, each_window
from .report import BeatStatus, EntryStatus, Report, WindowStatus, as_json, make_report

__all__ = (
    "BeatStatus",
    "EntryStatus",
    "Report",
    "Sight",
    "View",
    "WindowStatus",
    "as_json",
    "each_window",
    "make_report",
)
