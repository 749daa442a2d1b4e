"""The app for ``INSTALLED_APPS``."""

from __future__ import annotations

from django.apps import AppConfig


class EffectsConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """``"celery_once_beat.contrib.django.effects"`` in ``INSTALLED_APPS``."""

    name = "celery_once_beat.contrib.django.effects"
    label = "celery_once_beat_effects"
    verbose_name = "celery-once-beat: effects"
    default_auto_field = "django.db.models.AutoField"  # the model has a key of its own
