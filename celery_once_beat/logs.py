"""What a log line carries besides its prose, in ``extra``: a stable name of the event, and whom it is about.

``docs/logs.md`` lists the names. Prose may change; programs that read logs go by ``action``.
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
