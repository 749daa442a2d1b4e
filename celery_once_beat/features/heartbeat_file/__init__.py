"""Files by which probes see that a beat lives: ``once_beat_heartbeat_file``."""

from __future__ import annotations

#: Behind the heartbeat file's name: the file that is as old as the beat's last look at its work.
TICKS = ".ticks"
