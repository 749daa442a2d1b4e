"""Schedules and entries that are wrong, each in its own way, beside one that is right."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal

from apps.once_app import app
from celery.schedules import BaseSchedule, schedule, solar


class Remaining(BaseSchedule):
    """Says always the same of how long there is to wait."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def remaining_estimate(self, last_run_at):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Panic(BaseException):
    """As extensions in Rust raise it."""


class UnsayableError(Exception):
    """Its text is never ready: that of an object which asks a database, say."""

    def __repr__(self):
        time.sleep(3600)
        return "late"


class Raises(BaseSchedule):
    """Raises whenever it is asked whether it is due."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def is_due(self, last_run_at):
        raise self.error


class Hangs(BaseSchedule):
    """Never answers; what it calls raises nothing that it doesn't catch."""

    def remaining_estimate(self, last_run_at):
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # noqa: BLE001
                continue


class HangsPolled(BaseSchedule):
    """Never answers whether it is due."""

    def is_due(self, last_run_at):
        while True:
            time.sleep(0.01)


class Unreadable(dict):
    """Options that can't be gone through."""

    def items(self):
        raise RuntimeError("these options\n[CRITICAL] are broken")


def anchored(anchor):
    return {"schedule": timedelta(seconds=1), "options": {"once": {"anchor": anchor}}}


ODD = {
    # They are named once, and left out or looked at again later.
    "raises": lambda: Remaining(ValueError("this schedule\n[CRITICAL] is broken")),
    "exits": lambda: Remaining(SystemExit(3)),
    "panics": lambda: Remaining(Panic("in C")),
    "unsayable for long": lambda: Raises(UnsayableError()),
    "each microsecond": lambda: schedule(timedelta(microseconds=1)),
    "hangs": Hangs,
    "hangs in is_due": HangsPolled,
    "no such field": lambda: {"schedule": 1.0, "shedule": 1.0},
    "anchor at the end": lambda: anchored(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
    "unreadable": lambda: {"schedule": timedelta(seconds=1), "options": Unreadable(queue="nobody")},
    # They never start, and nothing is wrong with that.
    "solar": lambda: solar("sunrise", Decimal("52.520000"), Decimal("-150.400000")),  # as a database has it
    "far": lambda: Remaining(timedelta.max),
}

for name, make in ODD.items():
    made = make()
    if isinstance(made, BaseSchedule):
        made = {"schedule": made}
    app.conf.beat_schedule[name] = {"task": "apps.once_app.work", **made} if isinstance(made, dict) else made
