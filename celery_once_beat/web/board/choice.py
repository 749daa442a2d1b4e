"""What a viewer asks to see of the page: all of it stands in the address, so that a link reproduces the view. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone, tzinfo
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from starlette.datastructures import QueryParams

from celery_once_beat.outcomes import STATES

from . import words
from .axis import ZOOMS, Zoom
from .page import LOOKS, Line

#: Rows of one page: more would take a browser longer to show than a person to look for one.
ROWS = 100
_LONGEST, _LONGEST_ZONE = 200, 64
_MOST_PAGES = 100_000
_MOST_OPEN = 50
#: All groups are open.
ALL = "*"

GROUPS = {"": "not at all", "prefix": "prefix", "task": "task"}
SORTS = {"": "attention", "name": "name", "next": "next start", "newest": "newest window"}
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
_SORTED_BY: dict[str, Callable[[Line], Any]] = {
    "name": lambda line: line.name.casefold(),
    "next": lambda line: (line.status.next or _NEVER, line.name),
    "newest": lambda line: -line.windows[0].start.timestamp() if line.windows else math.inf,
}
_PREFIX_ENDS = re.compile(r"[-_.:/ ]")


@dataclass(frozen=True)
class Choice:
    """One view. What an address says that isn't known here is left out, as if it didn't stand there."""

    #: One of LOOKS, or ''.
    look: str = ""
    #: Part of a name.
    search: str = ""
    #: A name of ``outcomes.STATES``, or ''.
    state: str = ""
    group: str = ""
    #: The groups whose entries are shown, or ALL.
    open: tuple[str, ...] = ()
    sort: str = ""
    zoom: Zoom = ZOOMS["day"]
    #: Counts from 1.
    number: int = 1
    #: The time zone of all times, if not the app's.
    zone: tzinfo | None = None
    #: Whoever looks may act, too; this isn't of the address.
    acts: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, asked: QueryParams) -> Choice:
        """Read it from the query of an address."""

        def one_of(known: Container[str], name: str) -> str:
            value = asked.get(name, "")
            return value if value in known else ""

        number = asked.get("page", "")
        return cls(
            look=one_of(LOOKS, "only"),
            search=asked.get("q", "")[:_LONGEST],
            state=one_of(STATES, "state"),
            group=one_of(GROUPS, "group"),
            open=tuple(dict.fromkeys(asked.getlist("open")))[:_MOST_OPEN],
            sort=one_of(SORTS, "sort"),
            zoom=ZOOMS.get(asked.get("zoom", ""), ZOOMS["day"]),
            number=min(int(number), _MOST_PAGES) if re.fullmatch(r"[1-9]\d{0,8}", number, re.ASCII) else 1,
            zone=_zone(asked.get("zone", "")),
        )

    def address(self, **changes: Any) -> str:
        """Return the address of this view with ``changes``, relative to the page. It begins at the first rows again."""
        view = replace(self, **{"number": 1, **changes})
        said = [
            ("only", view.look),
            ("q", view.search),
            ("state", view.state),
            ("group", view.group),
            *(("open", name) for name in view.open),
            ("sort", view.sort),
            ("zoom", view.zoom.name if view.zoom is not ZOOMS["day"] else ""),
            ("page", str(view.number) if view.number > 1 else ""),
            ("zone", str(view.zone or "")),
        ]
        query = urlencode([(name, value) for name, value in said if value], errors="surrogatepass")
        return f"?{query}" if query else "./"

    def is_open(self, group: str) -> bool:
        """Whether a group's entries are shown."""
        return ALL in self.open or group in self.open

    def toggled(self, group: str) -> str:
        """Return the address where this group is open if it is folded here, and folded if it is open."""
        if group in self.open:
            return self.address(open=tuple(name for name in self.open if name != group))
        return self.address(open=(*self.open, group)[-_MOST_OPEN:])

    def group_of(self, line: Line) -> str:
        """Return the name of a line's group."""
        if self.group == "task":
            return line.shown_task or "no task"
        return _PREFIX_ENDS.split(line.name, maxsplit=1)[0] or line.name

    def picked(self, lines: Iterable[Line], begin: datetime) -> list[Line]:
        """Return the lines that are asked for, in the order that is asked for; the axis begins at ``begin``."""
        wanted = self.search.casefold()
        picked = [
            line
            for line in lines
            if (not self.look or line.is_of(self.look))
            and (not wanted or wanted in line.name.casefold() or wanted in line.shown_task.casefold())
            and (not self.state or self._has_state(line, begin))
        ]
        return sorted(picked, key=_SORTED_BY[self.sort]) if self.sort else picked

    def _has_state(self, line: Line, begin: datetime) -> bool:
        return any(words.state_of(seen.state).name == self.state and seen.start >= begin for seen in line.windows)


def _zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name and name.isascii() and len(name) < _LONGEST_ZONE else None
    except (OSError, LookupError, ValueError):  # there is none of this name
        return None
