"""Crontabs from five fields, as people write them: ``crontab.from_string`` is newer than the oldest Celery here."""

from __future__ import annotations

from celery.schedules import crontab

_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def cron(text: str) -> crontab:
    """The schedule of a line like ``30 2 * * 1-5``."""
    return crontab(**dict(zip(_FIELDS, text.split(), strict=True)))
