"""What a web server runs: users choose when they get a mail. WSGI, and nothing but Redis behind it.

It has no Celery app, and needs no broker and no beat. ``PUT /users/erin`` with ``{"every": 1, "at": 0, "zone":
"Asia/Tokyo"}`` sets erin's schedules, and answers when they start next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab

from celery_once_beat import Schedules
from celery_once_beat.errors import SettingError
from examples.ways import node

from . import HALF_HOUR

__all__ = ("application",)

schedules = Schedules(url=node.URL)


def application(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer one request."""
    user = environ["PATH_INFO"].removeprefix("/users/")
    try:
        chosen = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        status, answer = "200 OK", set_times(user, **chosen)
    except (SettingError, TypeError, ValueError) as exc:
        status, answer = "400 Bad Request", {"wrong": str(exc)}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]


def set_times(user: str, *, every: int, at: int, zone: str) -> dict[str, str]:
    """Set a user's schedules; returns when each starts next, in their own time.

    A mail comes each so many half hours, ``at`` says which ones. A summary comes in the morning where the user is.
    """
    mails = schedules.set(
        f"mails/{user}",
        task=f"{__package__}.once.mail",
        args=[user],
        schedule=timedelta(seconds=every * HALF_HOUR),
        once={"anchor": datetime.fromtimestamp(at * HALF_HOUR, timezone.utc)},
        by=user,
    )
    summary = schedules.set(
        f"summary/{user}",
        task=f"{__package__}.once.summary",
        args=[user],
        schedule=crontab(hour=7, minute=30),
        timezone=zone,
        by=user,
    )
    return {
        each.name: start.astimezone(ZoneInfo(zone)).isoformat(" ")
        for each in (mails, summary)
        for start in schedules.next(each.name)
    }
