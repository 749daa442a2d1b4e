"""How tables, times and spans of time look on a terminal, and JSON. click leaves colours out where there is none."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from itertools import chain, repeat
from typing import Any, TypeVar

import click

from celery_once_beat import wording
from celery_once_beat.outcomes import STATES

T = TypeVar("T")

#: DEL and the C1 controls, and what turns the direction of text; JSON escapes those below a blank itself.
_CONTROLS = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: A column is no wider; a longer cell moves its own line alone.
_WIDEST = 60


def print_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = (), nothing: str = ""
) -> None:
    """Print columns as wide as they must be, the last one cut off where a terminal ends. Cells may be styled.

    ``notes`` are printed below the lines, where there are some; ``nothing`` instead of a table without lines.
    """
    if not lines and nothing:
        click.echo(nothing)
        return
    widths = [
        min(max(len(click.unstyle(cell)) for cell in column), _WIDEST) for column in zip(head, *lines, strict=True)
    ]
    styled = [[click.style(cell, bold=True) if cell else "" for cell in head], *lines]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    left = max(columns - sum(widths[:-1]) - 2 * len(widths[:-1]), len(head[-1])) if columns else None
    for (*cells, last), note in zip(styled, chain(("",), notes, repeat("")), strict=False):
        padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(cells, widths, strict=False)]
        text = click.unstyle(last)
        if left is not None and len(text) > left:
            last = text[: left - 1] + "…"  # noqa: PLW2901
        click.echo("  ".join([*padded, last]).rstrip())
        if note:
            click.echo(note)


def print_rows(rows: Sequence[T], columns: Mapping[str, Callable[[T], str]], nothing: str = "") -> None:
    """Print a table of ``rows`` with these columns: the head of each, and what makes a row's cell."""
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    print_table([*columns], lines, nothing=nothing)


def painted(state: str) -> str:
    """A window's outcome or state in its colour."""
    return click.style(state, fg=STATES[state].colour) if state in STATES else plain(state)


def plain(text: str | None) -> str:
    """A name from outside, printable; ``-`` for None."""
    return "-" if text is None else wording.printable(text)


def local(instant: datetime | None, zone: tzinfo, now: datetime | None = None) -> str:
    """An instant as local time; without the date where that is today's, with the offset where it comes twice."""
    if instant is None:
        return "-"
    there = instant.astimezone(zone)
    shown = there.strftime("%H:%M:%S") + (f".{there.microsecond:06}".rstrip("0") if there.microsecond else "")
    if there.replace(fold=1 - there.fold).utcoffset() != there.utcoffset():
        shown += there.isoformat()[-6:]
    if now is not None and there.date() == now.astimezone(zone).date():
        return shown
    return f"{there:%Y-%m-%d} {shown}"


def in_zone(text: str, zone: tzinfo) -> str:
    """Write the instants of a text, which are UTC, as all others of a page."""
    return wording.in_zone(text, lambda instant: local(instant, zone))


def print_json(value: Any) -> None:
    """Print one JSON document; what could move a terminal's cursor, or turn its text, is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


@contextmanager
def printing_json(json_: bool) -> Iterator[Callable[[dict[str, Any], str], None]]:  # noqa: FBT001
    """Give what takes each result, as JSON and in words. JSON is printed in the end, also where a later one fails."""
    results: list[dict[str, Any]] = []

    def add(result: dict[str, Any], words: str) -> None:
        results.append(result)
        if not json_:
            click.echo(words)

    try:
        yield add
    finally:
        if json_:
            print_json(results)
