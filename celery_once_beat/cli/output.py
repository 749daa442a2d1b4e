"""How tables, times and durations look on a terminal. click leaves colours out where there is none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, tzinfo

import click

from celery_once_beat.windows import parse_instant

__all__ = ("local", "painted", "plain", "print_table", "span", "told")

_COLOURS = {
    "done": "green",
    "running": "cyan",
    "waiting": "cyan",
    "published": "cyan",
    "failed": "red",
    "abandoned": "red",
    "dropped": "red",
    "overdue": "red",
    "missed": "yellow",
    "expired": "yellow",
    "revoked": "yellow",
    "skipped": "yellow",
}


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they must be, the last one cut off where a terminal ends. Cells may be styled."""
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(head, *lines, strict=True)]
    styled = [[click.style(cell, bold=True) if cell else "" for cell in head], *lines]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    left = max(columns - sum(widths[:-1]) - 2 * len(widths[:-1]), len(head[-1])) if columns else None
    for *cells, last in styled:
        padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(cells, widths, strict=False)]
        text = click.unstyle(last)
        if left is not None and len(text) > left:
            last = text[: left - 1] + "…"  # noqa: PLW2901
        click.echo("  ".join([*padded, last]).rstrip())


def painted(state: str) -> str:
    """A window's outcome or state in its colour."""
    return click.style(state, fg=_COLOURS[state]) if state in _COLOURS else plain(state)


def plain(text: str | None) -> str:
    """A name from outside on one line: what could move a terminal's cursor is written out."""
    if text is None:
        return "-"
    return text if text.isprintable() else repr(text)


def span(seconds: float | None) -> str:
    """A duration: ``0.4 s``, ``3 min 04 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if seconds is None:
        return "-"
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 59.95:  # noqa: PLR2004  # beyond it rounds to a minute
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:  # noqa: PLR2004
        return f"{sign}{whole // 60} min {whole % 60:02} s"
    if whole < 86400:  # noqa: PLR2004
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{sign}{whole // 86400} d {whole % 86400 // 3600} h"


def local(text: str | None, zone: tzinfo, now: datetime | None = None) -> str:
    """An instant's text as local time; without the date where that is today's, with the offset where it comes twice."""
    if text is None:
        return "-"
    instant = parse_instant(text).astimezone(zone)
    shown = instant.strftime("%H:%M:%S") + told(instant)
    if instant.replace(fold=1 - instant.fold).utcoffset() != instant.utcoffset():
        shown += instant.isoformat()[-6:]
    if now is not None and instant.date() == now.astimezone(zone).date():
        return shown
    return f"{instant:%Y-%m-%d} {shown}"


def told(instant: datetime) -> str:
    """What lies beyond an instant's seconds: ``.5``, or nothing."""
    return f".{instant.microsecond:06}".rstrip("0") if instant.microsecond else ""
