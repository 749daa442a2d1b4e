"""The rows that one viewer sees: which ones, in which order, and their HTML, kept while it is true."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from itertools import chain, count
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment
from markupsafe import Markup

from celery_once_beat.identity import digest
from celery_once_beat.status import WindowStatus
from celery_once_beat.windows import format_instant

from . import words
from .axis import Axis, Cell, bars_of, cells_of, make_axis, worst
from .choice import ROWS, Choice
from .page import Line, Page

K = TypeVar("K")

#: What changes beside the rows: macros of ``parts.html``, each for the element of its name.
PARTS = ("headline", "as_of", "trouble", "strip", "beats", "workers", "code", "found", "nothing", "rows", "pager")
#: Rows of HTML that are kept for the next snapshot.
_KEPT_ROWS = 4 * ROWS
#: How many views are kept, and of how many moments, for viewers who were away for a moment. With thousands of entries
#: each takes some hundred kB.
_KEPT = 60


@dataclass(frozen=True)
class Shown:
    """What one view shows of one page."""

    page: Page
    #: By id of its element each row's HTML, in order; the axis is the first.
    rows: dict[str, Markup]
    #: By id of its element what else changes, as HTML.
    parts: dict[str, Markup]
    #: By this a viewer says what it sees.
    position: str


@dataclass(frozen=True)
class _Group:
    """The entries of one group, as one row."""

    name: str
    lines: Sequence[Line]

    @property
    def id(self) -> str:
        return "g" + digest(self.name).hex()


class Grid:
    """Shows pages; belongs to one event loop."""

    def __init__(self, templates: Environment, zone: tzinfo) -> None:
        self._templates = templates
        self._zone = zone
        # A line is the same object while nothing of it changes, see ``page``.
        self._row = lru_cache(_KEPT_ROWS)(self._make_row)
        self._cells: dict[str, tuple[Line, Axis, list[Cell]]] = {}
        # Positions of another process mean nothing here.
        self._era = secrets.token_hex(4)
        self._numbers = count(1)
        self._views: dict[Choice, Shown] = {}
        #: By position.
        self._shown: dict[str, Shown] = {}

    def at(self, position: str) -> Shown | None:
        """Return what a viewer at this position sees; None where that isn't known any more."""
        return self._shown.get(position)

    def show(self, page: Page, choice: Choice) -> Shown:
        """Return what ``choice`` shows of ``page``."""
        shown = self._views.get(choice)
        if shown is None or shown.page is not page:
            shown = self._make(page, choice)
            _keep(self._views, choice, shown)
            _keep(self._shown, shown.position, shown)
        return shown

    def _make(self, page: Page, choice: Choice) -> Shown:
        axis = make_axis(choice.zoom, page.moment, choice.zone or self._zone)
        if len(self._cells) > 2 * len(page.lines):
            self._cells.clear()
        picked = choice.picked(page.lines.values(), axis.begin)
        items: list[_Group | Line] = list(_grouped(picked, choice)) if choice.group else [*picked]
        pages = max(1, -(-len(items) // ROWS))
        number = min(choice.number, pages)
        tenth = int((axis.place(page.moment) - axis.zoom.columns + 1) * 10)
        rows = {"axis": self._render("axis.html", axis=axis, zone=str(axis.zone), tenth=tenth)}
        for item in items[(number - 1) * ROWS : number * ROWS]:
            if isinstance(item, _Group):
                rows[item.id] = self._group(item, choice, axis)
            else:
                rows[f"e{item.id}"] = self._row(item, axis, page.cause, zone=choice.zone, acts=choice.acts)
        parts = self._parts(page, choice, axis.zone, picked=len(picked), number=number, pages=pages, total=len(items))
        return Shown(page, rows, parts, f"{self._era}-{next(self._numbers)}")

    def _parts(self, page: Page, choice: Choice, zone: tzinfo, **numbers: int) -> dict[str, Markup]:
        report = page.report
        told: dict[str, Any] = {"page": page, "choice": choice, "zone": zone, **numbers}
        told["clock"] = words.clock(page.moment, zone)
        told["beats"] = [(words.plain(beat.beat), words.beat_words(beat)) for beat in report.beats] if report else []
        told["workers"] = [*words.workers(report, zone)] if report else []
        macros = self._templates.get_template("parts.html").module
        return {name.replace("_", "-"): getattr(macros, name)(told) for name in PARTS}

    def _render(self, template: str, **values: Any) -> Markup:
        return Markup(self._templates.get_template(template).render(values))  # noqa: S704  # it escaped

    def _make_row(self, line: Line, axis: Axis, cause: str, zone: tzinfo | None, *, acts: bool) -> Markup:
        query = zone_query(zone)
        cells = [
            (cell, self._label(line, cell, axis), _address(line, cell, axis, query))
            for cell in cells_of(line.windows, axis)
        ]
        now = axis.bounds[-2]  # its local day is the same
        shown: dict[str, Any] = {"line": line, "cells": cells, "axis": axis, "query": query, "acts": acts}
        shown["bars"] = bars_of(line.windows, axis)
        shown["next"] = words.next_start(line.status, axis.zone, now, cause)
        shown["unknown_to"] = _unknown_to(line, axis)
        return self._render("row.html", **shown)

    def _label(self, line: Line, cell: Cell, axis: Axis) -> str:
        if len(cell.windows) == 1:
            return words.label(line.name, WindowStatus.of(cell.windows[0]), axis.zone)
        return f"{line.name}, {self._counted(cell, axis)}"

    def _counted(self, cell: Cell, axis: Axis) -> str:
        """Say how many windows stand how in a column: ``21 November 02:00 to 03:00, 3 windows: 1 failed, 2 done``."""
        time = words.stretch(axis.bounds[cell.column - 1], axis.bounds[cell.column], axis.zone)
        number = len(cell.windows)
        how = ", ".join(f"{of_it} {words.said(state)}" for state, of_it in cell.counts)
        past = f", {cell.past_deadline} past the deadline" if cell.past_deadline else ""
        return f"{time}, {number} {'window' if number == 1 else 'windows'}: {how}{past}"

    def _group(self, group: _Group, choice: Choice, axis: Axis) -> Markup:
        by_column: dict[int, list[Cell]] = {}
        for line in group.lines:
            known = self._cells.get(line.id)
            if known is None or known[0] is not line or known[1] != axis:
                known = self._cells[line.id] = (line, axis, cells_of(line.windows, axis))
            for cell in known[2]:
                by_column.setdefault(cell.column, []).append(cell)
        cells = []
        for column, found in sorted(by_column.items()):
            windows = list(chain.from_iterable(cell.windows for cell in found))
            cells.append(Cell(column, worst(cell.state for cell in found), windows))
        labelled = [(cell, self._counted(cell, axis)) for cell in cells]
        return self._render("group.html", group=group, cells=labelled, choice=choice)


def _keep(kept: dict[K, Shown], key: K, shown: Shown) -> None:
    kept.pop(key, None)
    kept[key] = shown  # the newest are at the end
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _grouped(lines: Iterable[Line], choice: Choice) -> Iterable[_Group | Line]:
    """Put lines under their groups; a group stands where its first line would."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(choice.group_of(line), []).append(line)
    for name, found in groups.items():
        yield _Group(name, found)
        if choice.is_open(name):
            yield from found


def zone_query(zone: tzinfo | None) -> str:
    """Return the query by which a story's times are in the zone that was chosen."""
    return "" if zone is None else "?" + urlencode({"zone": zone})


def _address(line: Line, cell: Cell, axis: Axis, query: str) -> str:
    """Where a cell leads: to its window, or to the list of them."""
    if len(cell.windows) == 1:
        return f"window/{line.id}/{format_instant(cell.windows[0].start)}{query}"
    begin, end = axis.bounds[cell.column - 1 : cell.column + 1]
    return f"entry/{line.id}{query or '?'}&since={format_instant(begin)}&until={format_instant(end)}".replace("?&", "?")


def _unknown_to(line: Line, axis: Axis) -> int:
    """Return the last column of which it isn't known what happened: the store keeps only the newest windows."""
    if not line.windows or line.is_whole:
        return 0
    return axis.column(line.windows[-1].start) - 1
