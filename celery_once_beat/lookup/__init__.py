"""What readers are shown of the store: beats, entries, windows, records. It writes nothing.

The core imports nothing of it.
"""

from __future__ import annotations

from .lookup import Lookup
from .remembered import Remembered
from .seen import BeatStatus, EntrySeen, Overview, Past, WindowSeen, each_window
