"""What Django's admin imports of an app in ``INSTALLED_APPS``: registers our admin of rows where the stock one is.

A project that has registered an admin of its own keeps it, before or after this: it takes ``OnceAdminMixin``.
"""

from __future__ import annotations

from django.contrib import admin
from django_celery_beat.admin import PeriodicTaskAdmin  # which registers it, whatever the order of the apps
from django_celery_beat.models import PeriodicTask

from .row_admin import OnceAdminMixin


class OncePeriodicTaskAdmin(OnceAdminMixin, PeriodicTaskAdmin):  # type: ignore[misc]  # the base has no types
    """django-celery-beat's admin of rows, with their windows."""


if type(admin.site._registry.get(PeriodicTask)) is PeriodicTaskAdmin:  # noqa: SLF001  # get_model_admin is Django 5's
    admin.site.unregister(PeriodicTask)
    admin.site.register(PeriodicTask, OncePeriodicTaskAdmin)
