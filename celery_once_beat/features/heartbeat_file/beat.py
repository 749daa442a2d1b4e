"""The files by which probes see that this beat lives, without asking Redis or importing Celery.

``PATH`` is as old as the last sign of life that Redis had from this beat, or older; never younger. So it says what
``celery once ping`` says. ``PATH.ticks`` is as old as the beat's last sweep, whether Redis answers or not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery_once_beat.beat.part import BeatPart
from celery_once_beat.logs import Logged, about, get_logger
from celery_once_beat.store import BeatReport, Heartbeat, Overdue
from celery_once_beat.windows import WindowKey

from . import TICKS

logger = get_logger(__name__)


class Part(BeatPart):
    """One beat's files. While its ticks fail, and without a path, it has none. No method raises."""

    def __init__(self, beat: Any) -> None:
        super().__init__(beat)
        self._path: str | None = beat.store.settings.heartbeat_file
        #: When the sweep began (``time.time()``); None while ticks fail.
        self._began: float | None = None
        #: Files that this beat has written.
        self._written: set[str] = set()
        self._logged = Logged()

    def before_sweep(self, report: BeatReport) -> Sequence[Any]:
        """Show that beat works."""
        if report.failing:
            self._began = None
            self.on_close()
        else:
            # Before Redis is asked: however late its answer comes, the file isn't younger than what Redis knows.
            self._began = time.time()
            self._touch(TICKS, self._began)
        return ()

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """Say that Redis has heard of this beat."""
        if self._began is not None and isinstance(found.heartbeat, Heartbeat):
            self._touch("", self._began)
        return ()

    def on_close(self) -> None:
        """Leave no file behind."""
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
            why = exc.strerror or str(exc)
            if self._logged.is_new("file", why):
                logger.error(
                    "once: the heartbeat file %s can't be written: %s. Probes that read it take this beat for dead; "
                    "let once_beat_heartbeat_file name a file in a folder that beat may write to",
                    self._path,
                    why,
                    extra=about("heartbeat_file_failed", owner=self._beat.beat_id),
                )
        else:
            self._logged.end("file")
