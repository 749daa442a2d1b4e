"""How values are written in messages."""

from __future__ import annotations

__all__ = ("shown",)

#: Characters of a stranger's value in a message.
_SHOWN = 80


def shown(value: object) -> str:
    """Return a value for a message: its repr on one line, at most 80 characters of it."""
    try:
        text = " ".join(repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value).split())
    except Exception:  # noqa: BLE001  # a stranger's __repr__, or an int of too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
