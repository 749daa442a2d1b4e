"""Time zone data that differs from this machine's, as a container has it that wasn't built anew."""

from __future__ import annotations

import struct
from pathlib import Path
from zoneinfo import TZPATH


def other_rules(directory: Path, zone: str, seconds: int) -> str:
    """Write a zone with one offset from UTC into ``directory``; returns the PYTHONTZPATH that finds it first."""
    head = struct.pack(">4sc15x6I", b"TZif", b"2", 0, 0, 0, 0, 1, 4)
    block = head + struct.pack(">iBB", seconds, 0, 0) + b"ODD\0"
    sign = "-" if seconds >= 0 else "+"  # as POSIX has it
    minutes, rest = divmod(abs(seconds), 60)
    footer = f"\n<ODD>{sign}{minutes // 60:02}:{minutes % 60:02}:{rest:02}\n"
    path = directory / zone
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(block + block + footer.encode())
    return ":".join((str(directory), *TZPATH))
