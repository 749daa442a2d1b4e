"""What the pages of measured runs have in common: where it was measured, tables, and where a page goes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path


def machine(*more: str) -> str:
    """Where and with what something was measured: these packages too."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("celery", "kombu", "redis", *more))
    system = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return f"{datetime.now(timezone.utc):%Y-%m-%d}, {system}, {packages}"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]], words: int = 1) -> str:
    """A table in Markdown, whose first columns hold words, and the others numbers."""
    return "\n".join(map(row, [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]))


def write(folder: str | Path | None, name: str, text: str) -> None:
    """Print a page; with a folder it is written there, too."""
    print(text)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(text)
