"""JSON from Redis, read strictly: it isn't trusted. A ValueError says what was found and what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from celery_once_beat.wording import expect, shown

#: Most bytes of a definition's JSON, and most characters of any that is read.
MOST_JSON = 64 * 1024
#: Objects and lists within each other: few enough to walk through them by recursion.
_MOST_LEVELS = 64


def read_object(text: str) -> dict[str, Any]:
    """Return a JSON object of finite numbers and valid Unicode; raises ValueError."""
    if len(text) > MOST_JSON:
        raise ValueError(f"found {len(text)} characters of JSON, expected up to {MOST_JSON}")
    try:
        text.encode()
        found = _DECODER.decode(text)
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


def typed(fields: Mapping[str, Any], name: str, kind: type, expected: str, default: object = None) -> Any:
    """Return a field of one of JSON's types; raises ValueError."""
    value = fields.get(name, default)
    return expect(name, value, isinstance(value, kind), expected)


def number_of(fields: Mapping[str, Any], name: str, least: float, most: float) -> Any:
    """Return a field that is a number from ``least`` to ``most``; raises ValueError."""
    value = fields.get(name)
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    return expect(name, value, fits, f"a number from {least:g} to {most:g}")


def whole_of(fields: Mapping[str, Any], name: str, most: int, default: object = None) -> Any:
    """Return a field that is a whole number from 1 to ``most``; raises ValueError."""
    value = fields.get(name, default)
    return expect(name, value, type(value) is int and 1 <= value <= most, f"a whole number from 1 to {most}")


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


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
