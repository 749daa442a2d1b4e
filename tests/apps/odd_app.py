"""Schedules and entries that are wrong, each in its own way, beside one that is right; which ones ``ODD`` names."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from apps.once_app import app
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.errors import StoreUnavailableError

NAN = float("nan")


class Remaining(BaseSchedule):
    """Says always the same of how long there is to wait."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def remaining_estimate(self, last_run_at):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Due(BaseSchedule):
    """The same with a rule of its own for what is due."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def is_due(self, last_run_at):
        return self.answer


class Panic(BaseException):
    """As extensions in Rust raise it."""


class UnsayableError(Exception):
    """Its text ends the process, or is never ready: that of an object which asks a database, say."""

    def __init__(self, of=None):
        super().__init__()
        self.of = of

    def __repr__(self):
        if self.of is None:
            raise Panic("no text")
        time.sleep(self.of)
        return "late"


class Raises(BaseSchedule):
    """Raises whenever it is asked whether it is due."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def is_due(self, last_run_at):
        raise self.error


class Mute(Remaining):
    """Can't be shown."""

    def __repr__(self):
        raise RuntimeError("no name")


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


class Nowhere(tzinfo):
    """A zone that doesn't know its offset."""

    def utcoffset(self, dt):
        return None


class Lost(tzinfo):
    """A zone that raises."""

    def utcoffset(self, dt):
        raise RuntimeError("no idea where")


def february_31():
    # Celery refuses it since 5.6, older releases don't.
    never = crontab(minute=0, hour=0)
    never.day_of_month, never.month_of_year = {31}, {2}
    return never


class Unreadable(dict):
    """Options that can't be gone through."""

    def items(self):
        raise RuntimeError("these options\n[CRITICAL] are broken")


def with_options(**options):
    return {"schedule": timedelta(seconds=1), "options": options}


def anchored(anchor):
    return {"schedule": timedelta(seconds=1), "options": {"once": {"anchor": anchor}}}


ODD = {
    # They are named once, and left out or looked at again later.
    "raises": lambda: Remaining(ValueError("this schedule\n[CRITICAL] is broken")),
    "exits": lambda: Remaining(SystemExit(3)),
    "asks": lambda: Remaining(StoreUnavailableError("another Redis is away")),
    "panics": lambda: Remaining(Panic("in C")),
    "unsayable": lambda: Raises(UnsayableError()),
    "unsayable for long": lambda: Raises(UnsayableError(3600)),
    "recursion": lambda: Remaining(RecursionError("deep")),
    "zero": lambda: Remaining(timedelta(0)),
    "backwards": lambda: Remaining(timedelta(days=-1)),
    "a number": lambda: Remaining(3.0),
    "none": lambda: Remaining(None),
    "a datetime": lambda: Remaining(datetime(2026, 1, 1)),
    "due none": lambda: Due(None),
    "due nan": lambda: Due((False, NAN)),
    "due true nan": lambda: Due((True, NAN)),
    "due negative": lambda: Due((False, -5)),
    "due words": lambda: Due(("yes", "soon")),
    "due triple": lambda: Due((True, 1, 2)),
    "due in no time": lambda: Due((False, 1e-9)),
    "each microsecond": lambda: schedule(timedelta(microseconds=1)),
    "each microsecond of its own": lambda: Remaining(timedelta(microseconds=1)),
    "zero interval": lambda: schedule(timedelta(0)),
    "hangs": Hangs,
    "hangs in is_due": HangsPolled,
    "mute": lambda: Mute(timedelta(seconds=1)),
    "no schedule": lambda: {"schedule": "whenever"},
    "no such field": lambda: {"schedule": 1.0, "shedule": 1.0},
    "no mapping": lambda: 7,
    "no task": lambda: {"task": None, "schedule": 1.0},
    "options": lambda: {"schedule": 1.0, "options": ["once"]},
    "anchor at the end": lambda: anchored(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
    "anchor nowhere": lambda: anchored(datetime(2026, 1, 1, tzinfo=Nowhere())),
    "expires inf": lambda: with_options(expires=float("inf")),
    "expires nan": lambda: with_options(expires=NAN),
    "expires late": lambda: with_options(expires=2**63 - 1),
    "expires huge": lambda: with_options(expires=10**400),
    "expires soon": lambda: with_options(expires="soon"),
    "expires nowhere": lambda: with_options(expires=datetime(2026, 1, 1, tzinfo=Lost())),
    "expires list": lambda: with_options(expires=[1]),
    "countdown inf": lambda: with_options(countdown=float("inf")),
    "countdown words": lambda: with_options(countdown="5"),
    "eta number": lambda: with_options(eta=5),
    "headers pairs": lambda: with_options(headers=[("a", 1)]),
    "headers words": lambda: with_options(headers="a: 1"),
    "unreadable": lambda: {"schedule": timedelta(seconds=1), "options": Unreadable(queue="nobody")},
    # They never start, and nothing is wrong with that.
    "solar": lambda: solar("sunrise", Decimal("52.520000"), Decimal("-150.400000")),  # as a database has it
    "never": february_31,
    "in ten thousand years": lambda: schedule(timedelta(days=3_650_000)),
    "far": lambda: Remaining(timedelta.max),
    "due far": lambda: Due((False, 1e300)),
}

for name in json.loads(os.environ.get("ODD", "null")) or ODD:
    made = ODD[name]()
    if isinstance(made, BaseSchedule):
        made = {"schedule": made}
    app.conf.beat_schedule[name] = {"task": "apps.once_app.work", **made} if isinstance(made, dict) else made
