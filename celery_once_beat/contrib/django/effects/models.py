"""The rows, for people to look at. ``record`` writes them without the model."""

from __future__ import annotations

from django.db import models

from celery_once_beat.features.effects.statements import TABLE


class RecordedWindow(models.Model):  # type: ignore[misc]  # Django has no types
    """A window and step whose transaction has committed."""

    id = models.CharField(primary_key=True, max_length=64)  # SHA-256, in hex: names are too long for a key, and fold
    entry = models.CharField(max_length=255)
    start = models.CharField(max_length=27)
    step = models.CharField(max_length=100)
    fence = models.BigIntegerField(null=True)
    attempt = models.IntegerField()
    recorded_at = models.CharField(max_length=27)
    execution = models.CharField(max_length=32)
    result = models.TextField(null=True)  # noqa: DJ001  # JSON; none isn't an empty one

    class Meta:
        """Its name is that of SQLAlchemy's too."""

        db_table = TABLE
        indexes = (models.Index(fields=["recorded_at"], name="once_effects_recorded_at"),)

    def __str__(self) -> str:
        """Name the window."""
        return f"{self.entry} {self.start} {self.step}".rstrip()
