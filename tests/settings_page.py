"""Makes the tables of docs/settings.md from the rows of ``options.py``: ``python tests/settings_page.py``."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from dataclasses import MISSING, fields
from pathlib import Path

from celery_once_beat import options
from celery_once_beat.options import FIELDS, ROWS, EntryOptions, Options

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
#: A line that begins a section, or the comment above a row and its name.
_SOURCE = re.compile(r"^    # -- (.+)\n|((?:^    #: .+\n)+)^    (\w+): .+ = \w*row\(", re.MULTILINE)


def fill(page: str) -> str:
    """Return the page with the tables as they are to be, each the first one under its title."""
    for title, rows in _sections().items():
        table = re.compile(rf"(^## {title}\n(?:(?!##|\|).*\n)*)(?:^\|.*\n)+", re.MULTILINE)
        page, number = table.subn(lambda found, rows=rows: found[1] + _table(rows), page)
        if number != 1:
            raise ValueError(f"{PAGE.name}: found {number} tables under '## {title}', expected one")
    return page


def _sections() -> dict[str, list[tuple[str, str]]]:
    """Return for each title the names of its options, each with what it does."""
    sections, title = defaultdict(list), ""
    for kind in (Options, EntryOptions):
        for begun, comment, name in _SOURCE.findall(inspect.getsource(kind)):
            title = begun or title
            if name:
                sections[title].append((name, " ".join(re.findall(r"#: (.+)", comment))))
    return sections


def _table(rows: list[tuple[str, str]]) -> str:
    by_task = any(ROWS[name].task for name, _ in rows)
    by_entry = any(ROWS[name].entry for name, _ in rows)
    where = "by task, by entry" if by_task else "key of `once`" if by_entry else None
    lines = [_line("setting", "default", where, ""), _line("---", "---", where and "---", "---")]
    for name, does in rows:
        row = ROWS[name]
        key = f"`{name}`" if row.entry else ""
        if by_task:
            key = ", ".join([f"`once_{name}`"] * row.task + [f"key {key}"] * row.entry)
        lines.append(_line(_setting(name), row.shown or _default(name), where and key, does))
    return "".join(lines)


def _line(setting: str, default: str, key: str | None, does: str) -> str:
    cells = [setting, default, *([] if key is None else [key]), does]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _setting(name: str) -> str:
    if name in {each.name for each in fields(EntryOptions)}:
        return ""
    return f"`{ROWS[name].setting or f'once_beat_{name}'}`"


def _default(name: str) -> str:
    value = FIELDS[name].default
    if value is MISSING:
        return "`{}`"
    return f'`"{value}"`' if isinstance(value, str) else f"{value:g}" if type(value) is float else str(value)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
    print(f"{PAGE.name} is as {options.__name__} says")
