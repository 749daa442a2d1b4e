"""A task that executes each window once, in a Django project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.contrib.django.task import DjangoTask

from celery_once_beat.worker import OnceTask as _OnceTask

if TYPE_CHECKING:
    _DjangoTask = DjangoTask[Any, Any]
else:
    _DjangoTask = DjangoTask  # older releases of Celery can't be subscripted


class OnceTask(_OnceTask, _DjangoTask):
    """As :class:`celery_once_beat.OnceTask`, with ``delay_on_commit()`` and ``apply_async_on_commit()``.

    Those are Celery's own, which its tasks have in a Django project as long as the app has no ``task_cls``.
    """

    abstract = True
