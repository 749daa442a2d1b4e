"""For Django: a scheduler over django-celery-beat's tables, an admin of its rows, and a task base for commits.

In ``INSTALLED_APPS`` it is the app that shows windows in the admin; the scheduler and the tasks don't need that.

The names are loaded when they are first used: ``OnceTask`` stands in the module that makes the app, before Django is
set up, and the scheduler needs models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .entry import OnceModelEntry
    from .row_admin import OnceAdminMixin
    from .scheduler import OnceDatabaseScheduler
    from .task import OnceTask

__all__ = ("OnceAdminMixin", "OnceDatabaseScheduler", "OnceModelEntry", "OnceTask")

if not TYPE_CHECKING:  # a type checker would believe that any name is here
    _HOME = {
        "OnceAdminMixin": "row_admin",
        "OnceDatabaseScheduler": "scheduler",
        "OnceModelEntry": "entry",
        "OnceTask": "task",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        except ImportError:
            raise
        except Exception as exc:  # Django raises RuntimeError and ImproperlyConfigured alike
            raise ImportError(
                f"{name} needs Django's models: DJANGO_SETTINGS_MODULE set, 'django_celery_beat' in INSTALLED_APPS, "
                f"and django.setup() called, as Celery's own commands do ({exc})"
            ) from exc
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
