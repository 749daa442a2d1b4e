"""Where a worker's time goes: what its one thread is doing, looked at a thousand times a second."""

from __future__ import annotations

import atexit
import json
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

import celery
import kombu

import celery_once_beat

#: What is told apart: the innermost of these that a frame belongs to.
PLACES = {
    "the body": str(Path(__file__).parent / "app.py"),
    "round trips to the store": str(Path(celery_once_beat.__file__).parent / "store/exchange.py"),
    "the rest of this package's store": str(Path(celery_once_beat.__file__).parent / "store"),
    "the rest of this package": str(Path(celery_once_beat.__file__).parent),
    "kombu and the broker": str(Path(kombu.__file__).parent),
    "Celery": str(Path(celery.__file__).parent),
}


class Samples:
    """Counts places by kind of message; written to ``file`` when the process ends."""

    def __init__(self, file: Path) -> None:
        self.kind = 0
        self._counts: Counter[tuple[int, str]] = Counter()
        self._file = file
        atexit.register(self._write)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    def _look(self, _: int, frame: FrameType | None) -> None:
        place = ""
        while frame is not None and not place:
            file = frame.f_code.co_filename
            place = next((place for place, start in PLACES.items() if file.startswith(start)), "")
            frame = frame.f_back
        self._counts[self.kind, place or "Celery"] += 1

    def _write(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # else it would end the process behind Python
        self._file.write_text(json.dumps([[*at, number] for at, number in self._counts.items()]))
