"""A clock that stands still until it is set, for a process of its own: ``standing_clock.c``, preloaded.

libfaketime reads a file at each look, or once a second: too slow to set ten thousand times a second. This one reads a
page of shared memory.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

from needs import need

_SOURCE = Path(__file__).with_suffix(".c")
_PAGE = struct.Struct("<qqqq")


def library(directory: Path) -> Path:
    """Compile the library into *directory*, unless it is there; without a compiler the test is left out."""
    made = directory / "standing_clock.so"
    if not made.exists():
        fresh = directory / f"standing_clock-{os.getpid()}.so"
        subprocess.run([need("gcc"), "-O2", "-shared", "-fPIC", "-o", fresh, _SOURCE], check=True)
        fresh.replace(made)
    return made


class StandingClock:
    """The page of one clock, nanoseconds; with *goes_on* all but the wall clock are added to the machine's."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self.path = path
        self._goes_on = int(goes_on)
        if not path.exists():
            path.write_bytes(bytes(_PAGE.size))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE.size)

    def set(self, wall: int, monotonic: int, boot: int) -> None:
        """From now on these are the times."""
        _PAGE.pack_into(self._page, 0, wall, monotonic, boot, self._goes_on)

    def env(self, so: Path) -> dict[str, str]:
        """What to add to the environment of the process that gets this clock."""
        return {"LD_PRELOAD": str(so), "STANDING_CLOCK": str(self.path)}
