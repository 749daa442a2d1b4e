"""The ``extra`` of a log line: a stable name for the event, and the window or entry that it is about.

``docs/logs.md`` lists the names. The prose of a line may change, so programs should read ``action``.
"""

from __future__ import annotations

from typing import Any

from .windows import Window, WindowKey, format_instant

__all__ = ("about",)


def about(action: str, window: Window | WindowKey | None = None, **more: Any) -> dict[str, Any]:
    """Return the ``extra`` of a line: ``action``, the window's ``entry`` and ``start`` (UTC, as in keys), and more.

    ``owner`` is the beat or the delivery that speaks, ``attempt`` the number of the execution, from 1.
    """
    extra: dict[str, Any] = {"action": action}
    if window is not None:
        extra.update(entry=window.entry, start=format_instant(window.start))
    return {**extra, **more}
