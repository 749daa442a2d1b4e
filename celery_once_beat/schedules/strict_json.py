"""JSON from Redis, read strictly: it isn't trusted."""

from __future__ import annotations

import json
import math
from typing import Any

from celery_once_beat.wording import shown

__all__ = ("MOST_TEXT", "read_object")

#: Most bytes of a definition's JSON, and most characters of any that is read.
MOST_TEXT = 64 * 1024
#: Objects and lists within each other: few enough to walk through them by recursion.
_MOST_LEVELS = 64


def read_object(text: str) -> dict[str, Any]:
    """Return a JSON object of finite numbers and valid Unicode; raises ValueError."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"found {len(text)} characters of JSON, expected up to {MOST_TEXT}")
    try:
        text.encode()
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair can be written as an escape
        deep = text.count("[") + text.count("{") > _MOST_LEVELS and _is_deeper(found, _MOST_LEVELS)
    except RecursionError:
        deep = True
    except ValueError as exc:
        raise ValueError(f"its JSON can't be read: {exc}") from exc
    if deep:
        raise ValueError(f"its JSON is nested too deeply, expected up to {_MOST_LEVELS} levels")
    if not isinstance(found, dict):
        raise ValueError(f"found {shown(found)}, expected an object")  # noqa: TRY004
    return found


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _refuse(constant: str) -> float:
    raise ValueError(f"found {constant}, expected a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found the number {text[:20]}, expected a smaller one")
    return number
