"""A project's own admin of rows; with the mixin, and without it."""

import os

from django.contrib import admin
from django_celery_beat.admin import PeriodicTaskAdmin
from django_celery_beat.models import PeriodicTask

admin.site.unregister(PeriodicTask)
if "MIXIN" in os.environ:
    from celery_once_beat.contrib.django import OnceAdminMixin

    @admin.register(PeriodicTask)
    class OwnAdmin(OnceAdminMixin, PeriodicTaskAdmin):
        list_display = ("name", "task")

        def has_change_permission(self, request, obj=None):
            return super().has_change_permission(request, obj) and (obj is None or not obj.name.startswith("locked"))

else:

    @admin.register(PeriodicTask)
    class OwnAdmin(PeriodicTaskAdmin):
        list_display = ("name", "task")
