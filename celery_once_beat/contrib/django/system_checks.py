"""``manage.py check``: what is wrong with the settings; with ``--database default`` also with the rows."""

from __future__ import annotations

from typing import Any

from celery import current_app
from django.apps import apps
from django.core.checks import Error, Warning  # noqa: A004  # Django's names

from celery_once_beat.beat import load_schedule
from celery_once_beat.errors import OnceError
from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown
from celery_once_beat.worker import check_tasks


def check_settings(**_: Any) -> list[Error | Warning]:
    """Return the first wrong setting, or attribute of a task that is known so far, of the project's Celery app.

    Not all tasks: Celery has Django check the project while it imports them.
    """
    try:
        Settings.from_app(current_app, connects=False)
        check_tasks(current_app)
    except OnceError as exc:
        return [Error(str(exc), id="celery_once_beat.E001")]
    try:
        Settings.from_app(current_app)
    except OnceError as exc:  # where tests run, for example, none may be set
        return [Warning(str(exc), id="celery_once_beat.W001")]
    return []


def check_rows(*, databases: Any = None, **_: Any) -> list[Warning]:
    """Return each row that beats would leave out. Warnings: a wrong row mustn't stop a migration."""
    if not databases or not apps.is_installed("django_celery_beat"):
        return []
    scheduler = "celery_once_beat.contrib.django:OnceDatabaseScheduler"
    try:
        entries = load_schedule(current_app, Settings.from_app(current_app, connects=False), scheduler).entries
    except OnceError as exc:  # check_settings says it, or there are no tables yet
        return [Warning(str(exc), id="celery_once_beat.W002")]
    left_out = entries.wrong.items()
    return [Warning(f"{shown(name)} is left out: {why}", id="celery_once_beat.W003") for name, why in left_out]
