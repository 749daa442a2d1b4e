"""Read strictly what is kept for people: reports of beats, and records of the history.

Each raises ValueError or OverflowError for what isn't of its form, unless its docstring says otherwise.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from datetime import timedelta
from typing import Any

from celery_once_beat.store import BeatReport
from celery_once_beat.store.codec import instant, read_text, whole
from celery_once_beat.windows import parse_instant
from celery_once_beat.wording import MOST_FAILURE

from .seen import Past


def read_past(text: str) -> Past:
    """Read one record of a history; see ``lua/pieces/records.lua``."""
    start, outcome, claimed_ms, begun_after, closed_after, number, beat, worker = text.split(" ")
    to_seconds, _, fraction = start.partition(".")
    claimed = instant(claimed_ms)
    # Of what never began nobody is the worker, and no execution is counted.
    passed_over = outcome == "missed" or (worker == "-" and whole(number) > 0)
    ran = not passed_over and whole(number) > 0
    return Past(
        start=parse_instant(f"{to_seconds}.{fraction:0<6}Z"),
        outcome=read_text(outcome),
        claimed=claimed,
        begun=claimed + timedelta(milliseconds=whole(begun_after)) if ran else None,
        closed=claimed + timedelta(milliseconds=whole(closed_after)),
        attempts=0 if passed_over else whole(number),
        missed=max(whole(number), 1) if passed_over else 0,
        beat=beat,
        # Where nothing ran, it is who ended the window: a beat, or the worker that discarded its message.
        worker="" if not ran else f"celery{worker}" if worker.startswith("@") else worker,
        ordered=beat.endswith(":order"),
    )


def read_report(text: str | None) -> dict[str, Any]:
    """Read the fields of a beat's :class:`BeatReport`. None of them: it can't be read."""
    try:
        report = json.loads(text or "")
        known = {field.name: str(field.type).removesuffix(" | None") for field in fields(BeatReport)}
        return {name: _checked(report[name], kind) for name, kind in known.items() if report.get(name) is not None}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _checked(value: object, kind: str) -> Any:
    """Return a value of a report's JSON; raises ValueError if it isn't of its field's type, ``kind``."""
    if kind == "str" and isinstance(value, str):
        return value[:MOST_FAILURE]
    if isinstance(value, dict) and kind.startswith("Mapping"):
        return {name: _checked(why, "str") for name, why in value.items()}
    if kind != "str" and isinstance(value, (int, float)) and math.isfinite(value):
        return int(value) if kind == "int" else float(value)
    raise ValueError(f"found {value!r:.40}, expected {kind}")
