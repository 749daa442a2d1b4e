"""Deletes rows of windows that nobody executes again, in batches: a transaction each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_once_beat.options import wrong
from celery_once_beat.rules.checks import visibility_of
from celery_once_beat.settings import Settings
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import A_SPAN, read_span, span

from .statements import Transaction

#: Before any row.
_LONGEST = timedelta(days=100 * 366)


def prune(open_transaction: Callable[[], AbstractContextManager[Transaction]], older_than: timedelta) -> Iterator[int]:
    """Delete what was recorded longer ago than that; yield the number of each batch that is committed."""
    limit = format_instant(datetime.now(timezone.utc) - older_than)
    while True:
        with open_transaction() as transaction:
            found = transaction.send(transaction.statements.batch_end, {"limit": limit}).rows
            until = found[0][0] if found else limit
            deleted = transaction.send(transaction.statements.delete, {"until": until}).changed
        if deleted:
            yield deleted
        if not found:
            return


def read_age(text: str, app: Any, warn: Callable[[str], object]) -> timedelta:
    """Read ``--older-than``; raises SettingError for what is no span of time.

    ``warn`` is told if something whose row is that old may be executed again, even without a long outage.
    """
    age = read_span(text)
    if age is None or age > _LONGEST:
        raise wrong("--older-than", text, A_SPAN)
    settings = Settings.from_app(app, connects=False)
    ages = {
        "once_beat_retention": settings.retention,
        "once_beat_start_timeout": settings.start_timeout,
        "once_beat_lease": settings.lease,
        "the broker's visibility timeout": visibility_of(
            str(app.connection_for_write().transport_cls), app.conf.broker_transport_options or {}
        ),
    }
    name, longest = max(((name, seconds) for name, seconds in ages.items() if seconds), key=lambda each: each[1])
    if age.total_seconds() < longest:
        warn(
            f"once: rows younger than {name} ({span(longest)}) are deleted: a window of that age may run again, and "
            "would be written twice; keep rows for longer than that, and than any outage of your workers"
        )
    return age
