"""The app for ``INSTALLED_APPS``: django-celery-beat's admin then says how rows' windows stand. It has no models."""

from __future__ import annotations

from django.apps import AppConfig


class OnceConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """``"celery_once_beat.contrib.django"`` in ``INSTALLED_APPS``."""

    name = "celery_once_beat.contrib.django"
    label = "celery_once_beat"
    verbose_name = "celery-once-beat"
