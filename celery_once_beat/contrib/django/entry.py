"""A row of django-celery-beat as an entry of a beat schedule. Reads the row, and writes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.app import app_or_default
from django.conf import settings
from django.utils.timezone import get_default_timezone
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.schedulers import ModelEntry
from django_celery_beat.utils import make_aware
from kombu.utils.json import loads

from celery_once_beat.errors import OnceError, SettingError
from celery_once_beat.rules import check_anchor
from celery_once_beat.schedules import between, every
from celery_once_beat.wording import shown

_OPTIONS = ("queue", "exchange", "routing_key", "priority")


class OnceModelEntry(ModelEntry):  # type: ignore[misc]  # it has no types
    """What a row says. Two processes make the same entry of the same row.

    Raises SettingError, naming the row, if no entry can be made of it.
    """

    #: For a clocked row, just before its time: it runs even if it is first seen later.
    counts_from: datetime | None = None

    def __init__(self, model: Any, app: Any = None) -> None:
        self.app = app or app_or_default()
        self.model = model
        self.name = model.name
        self.task = model.task
        self.args = _json(model, "args", list, "a list like [1, 2]")
        self.kwargs = _json(model, "kwargs", dict, 'an object like {"key": 1}')
        headers = _json(model, "headers", dict, 'an object like {"once": {"catch_up": "all"}}')
        once = headers.pop("once", None)
        self.options = {name: getattr(model, name) for name in _OPTIONS if getattr(model, name) is not None}
        self.options["headers"] = {**headers, "periodic_task_name": model.name}
        if model.expires is not None:
            self.options["expires"] = instant(model.expires)
        elif model.expire_seconds is not None:
            self.options["expires"] = model.expire_seconds
        if model.start_time is not None and model.scheduler is model.interval:
            # Its first start is start_time itself, as it is under django-celery-beat.
            once = {} if once is None else once
            if isinstance(once, Mapping):
                once = {"anchor": instant(model.start_time), **once}
        if once is not None:
            self.options["once"] = once
        #: When the row was saved last, by the clock of who did; QuerySet.update() leaves it as it is. Aware UTC.
        self.edited_at = instant(model.date_changed)
        self.total_run_count = model.total_run_count
        ran = ran_at(model.last_run_at) if model.last_run_at else None
        self.last_run_at = ran or self._default_now()
        #: Which row it is, whatever its name.
        self.row = str(model.pk)
        #: Up to where another scheduler may have run the row (aware UTC). It saves the whole row, so ``date_changed``
        #: is later than ``last_run_at``. After an edit it may also be what our beats wrote. That does no harm: they
        #: write the start of a claimed window, which is never beyond the cursor.
        self.ran_elsewhere = ran if ran and ran <= self.edited_at else None
        self.schedule = self._schedule(once)

    def _schedule(self, once: Any) -> Any:
        model = self.model
        source = model.scheduler
        if source is None:
            raise SettingError(f"row {self.name!r} has no schedule: interval, crontab, solar and clocked are all empty")
        if source is model.interval and source.every <= 0:
            raise SettingError(f"row {self.name!r}, its interval: found every {source.every}, expected at least 1")
        begins = None if model.start_time is None else instant(model.start_time)
        ends = None if model.expires is None else instant(model.expires)
        if source is model.clocked:
            # In UTC two processes write it the same way, whatever time zone the row has it in.
            at = instant(source.clocked_time)
            inner: Any = clocked(at)
            if model.last_run_at is None or ran_at(model.last_run_at) < at:
                self.counts_from = at - timedelta(microseconds=1)
        else:
            inner = source.schedule
            # Only the first start that isn't past when the entry is loaded is a window: which one, the store remembers.
            inner.one_off = bool(model.one_off)
        inner.app = self.app
        if begins is None and ends is None:
            return inner
        part = at if source is model.clocked else inner
        if source is model.interval:
            anchor = once.get("anchor") if isinstance(once, Mapping) else None
            part = every(inner.run_every, anchor=check_anchor(f"row {self.name!r}, once['anchor']", anchor))
        bounded: Any = between(part, start=begins, end=ends)
        bounded.app, bounded.one_off = self.app, getattr(inner, "one_off", False)
        # For the base's entry, which knows the bounds itself. As a method it would make this type a polled one.
        bounded.is_due = inner.is_due
        return bounded

    def _disable(self, model: Any) -> None:
        """Write nothing: the base's ``is_due`` calls it for a row that has expired."""

    @classmethod
    def _unpack_options(
        cls, *, once: Any = None, expires: Any = None, headers: Any = None, expire_seconds: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Return the fields for an entry's options; ``once`` goes into the headers, ``expires`` isn't lost either."""
        if once is not None:
            headers = {**(headers or {}), "once": once}
        if expire_seconds is None and isinstance(expires, (int, float)):
            expire_seconds = math.ceil(expires)
        return super()._unpack_options(headers=headers, expire_seconds=expire_seconds, **options)  # type: ignore[no-any-return]


class WrongEntry:
    """Stands for a wrong row: beat names it, leaves it out, and continues with the others."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._why = str(error) if isinstance(error, OnceError) else f"row {name!r}: {shown(error)}"

    @property
    def task(self) -> str:
        """Raises the SettingError that says what is wrong."""
        raise SettingError(self._why)


def as_entries(models: Iterable[Any], entry: Callable[..., Any], app: Any) -> dict[str, Any]:
    """Return rows as entries by name. A wrong one is a WrongEntry, and doesn't affect the others."""
    found: dict[str, Any] = {}
    for model in models:
        try:
            found[model.name] = model if isinstance(model, WrongEntry) else entry(model, app=app)
        except Exception as exc:  # noqa: BLE001  # whatever a user's crontab or place raises
            found[model.name] = WrongEntry(model.name, exc)
    return found


def _json(model: Any, field: str, kind: type, expected: str) -> Any:
    text = getattr(model, field)
    try:
        value = loads(text) if text else kind()
    except Exception as exc:  # noqa: BLE001  # whatever a user's text raises
        raise SettingError(
            f"row {model.name!r}, {field}: found {shown(text)}, expected JSON, {expected}: {exc}"
        ) from None
    if not isinstance(value, kind):
        raise SettingError(f"row {model.name!r}, {field}: found {shown(text)}, expected {expected}")
    return value


def zone_of_runs() -> tzinfo:
    """Return in which zone ``last_run_at`` is with USE_TZ = False, as django-celery-beat's own scheduler writes it."""
    zone: tzinfo = get_default_timezone()
    return zone if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True) else timezone.utc


def ran_at(value: datetime) -> datetime:
    """Return a row's ``last_run_at`` in UTC."""
    return (value if value.tzinfo else value.replace(tzinfo=zone_of_runs())).astimezone(timezone.utc)


def instant(value: datetime) -> datetime:
    """Return any other time of a row in UTC; with USE_TZ = False it is in Django's TIME_ZONE."""
    aware: datetime = make_aware(value)
    return aware.astimezone(timezone.utc)
