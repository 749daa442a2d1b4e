"""The files by which probes see that this beat lives, without asking Redis or importing Celery.

``PATH`` is as old as the last sign of life that Redis had from this beat, or older; never younger. So it says what
``celery once ping`` says. ``PATH.ticks`` is as old as the beat's last look at its work, whether Redis answers or not.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from celery.utils.log import get_logger

from celery_once_beat.logs import about, guarded
from celery_once_beat.settings import TICKS

logger = guarded(get_logger(__name__))


class HeartbeatFile:
    """One beat's files. Without a path it has none. No method raises."""

    def __init__(self, path: str | None, beat: str) -> None:
        self._path = path
        self._beat = beat
        #: Files that this beat has written.
        self._written: set[str] = set()
        self._trouble = ""

    def looks(self) -> float:
        """Say that beat looks at its work; returns when it began (``time.time()``), for :meth:`heard`."""
        # Before Redis is asked: however late its answer comes, the file isn't younger than what Redis knows.
        now = time.time()
        self._touch(TICKS, now)
        return now

    def heard(self, at: float) -> None:
        """Say that Redis has heard of this beat, by a request that was sent after ``at``."""
        self._touch("", at)

    def remove(self) -> None:
        """Leave no file behind: this beat ends."""
        while self._written:
            with suppress(OSError):
                Path(self._written.pop()).unlink()

    def _touch(self, suffix: str, at: float) -> None:
        if self._path is None:
            return
        path = self._path + suffix
        try:
            try:
                os.utime(path, (at, at))
            except FileNotFoundError:
                new = Path(f"{path}.new")  # it gets its time before it gets its name
                new.touch()
                os.utime(new, (at, at))
                new.replace(path)
            self._written.add(path)
        except OSError as exc:
            self._log(f"{exc.strerror or exc}")
        else:
            self._trouble = ""

    def _log(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.error(
                "once: the heartbeat file %s can't be written: %s. Probes that read it take this beat for dead; let "
                "once_beat_heartbeat_file name a file in a folder that beat may write to",
                self._path,
                trouble,
                extra=about("heartbeat_file_failed", owner=self._beat),
            )
