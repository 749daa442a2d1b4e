"""How entries, windows and beats stand, for people."""

from __future__ import annotations

from .metrics import expose
from .poll import Sight, View
from .report import status_facts, story_facts, window_facts

__all__ = (
    "Sight",
    "View",
    "expose",
    "status_facts",
    "story_facts",
    "window_facts",
)
