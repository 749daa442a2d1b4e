"""Schedules in words, for people."""

from __future__ import annotations

import re
from typing import Any

from celery.schedules import crontab, schedule

from celery_once_beat.rules import CRON_FIELDS, PureSchedule, is_tz_aware_crontab
from celery_once_beat.wording import shown

from .intervals import step_text

#: How Celery's schedules write themselves: ``<solar: sunset at latitude …>``.
_REPR = re.compile(r"^<[\w-]+: (.*?)(?:>|(?<=…))$")


def describe(when: Any) -> str:
    """Say in a few words when a schedule starts: ``*/5 * * * *``, ``every 30 s``, else as it writes itself."""
    return _words(when) + (", one-off" if getattr(when, "one_off", False) else "")


def _words(when: Any) -> str:
    if type(when) is schedule:
        return f"every {step_text(when.run_every)}"  # type: ignore[attr-defined]  # celery-types lacks it
    if isinstance(when, crontab):
        fields = [str(getattr(when, f"_orig_{name}")) for name in CRON_FIELDS]
        return " ".join([*fields, str(when.tz)] if is_tz_aware_crontab(type(when)) else fields)
    if isinstance(when, PureSchedule):
        return when.words()
    kind: Any = type(when)
    if kind.__repr__ is object.__repr__:  # it has an address, another one in each process
        return f"{kind.__module__}.{kind.__qualname__}"
    return _REPR.sub(r"\1", shown(when))
