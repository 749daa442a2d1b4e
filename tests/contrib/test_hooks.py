"""Django's scheduler is built as anybody could build one: on Celery's names and the mixin's public ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from celery.beat import Scheduler

from celery_once_beat import OnceSchedulerMixin
from celery_once_beat.beat import publishing, scheduler

DJANGO = Path(sys.modules["celery_once_beat"].__path__[0], "contrib", "django", "scheduler.py")
CELERYS = set(dir(Scheduler)) | {"_heap"}


def private_names(source: Path) -> set[str]:
    """Attributes of ``self`` and methods with an underscore in front."""
    return set(re.findall(r"(?:self\.|def )(_[a-z]\w*)", source.read_text()))


def test_the_database_scheduler_needs_no_private_name() -> None:
    """It neither overrides nor uses what the mixin keeps to itself."""
    mixin = {name for module in (scheduler, publishing) for name in private_names(Path(module.__file__))}
    mixin |= {name for name in dir(OnceSchedulerMixin) if name.startswith("_") and not name.startswith("__")}
    assert "_publish" in mixin
    assert not private_names(DJANGO) & (mixin - CELERYS)
