"""The app for ``INSTALLED_APPS``: shows rows' windows in the admin, and checks the project. It has no models."""

from __future__ import annotations

from django.apps import AppConfig


class OnceConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """``"celery_once_beat.contrib.django"`` in ``INSTALLED_APPS``."""

    name = "celery_once_beat.contrib.django"
    label = "celery_once_beat"
    verbose_name = "celery-once-beat"

    def ready(self) -> None:
        """Register the checks."""
        from django.core.checks import Tags, register  # noqa: PLC0415  # as Django's own apps

        from .system_checks import check_rows, check_settings  # noqa: PLC0415  # models are there by now

        register(check_settings)
        register(check_rows, Tags.database)
