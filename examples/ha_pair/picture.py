"""One frame of the live view: the board as lines of text. Symbols say the same as the colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .board import Board, ProcessState, Row
from .telling import News
from .verdict import Verdict

__all__ = ("MAX_WIDTH", "MIN_HEIGHT", "MIN_WIDTH", "picture", "verdict_panel")

#: The least that a frame needs, and the width beyond which its lines would only be harder to read.
MIN_WIDTH, MIN_HEIGHT, MAX_WIDTH = 78, 18, 110

TITLE = "celery-once-beat: two beats, two workers, one of each killed"
PROCESS_STYLES = {
    "starting": ("·", "dim"),
    "running": ("●", "green"),
    "killed": ("✗", "bold red"),
    "stopped": ("○", "dim"),
}
ROW_STYLES = {
    "waiting": ("·", "waiting", "dim"),
    "running": ("►", "running", "cyan"),
    "interrupted": ("✗", "interrupted", "bold red"),
    "again": ("↻", "published again", "yellow"),
    "done": ("✓", "done", "green"),
}
NEWS_STYLES = {
    "told": ("·", ""),
    "killed": ("✗", "bold red"),
    "stopped": ("○", "dim"),
    "copied": ("»", ""),
    "refused": ("⊘", "magenta"),
    "again": ("↻", "yellow"),
    "takeover": ("►", "bold cyan"),
}
#: Columns of the table but the last one, with their widths.
COLUMNS = (("window, UTC", 19), ("claimed by", 10), ("executed by", 21), ("  late", 6))
#: Spaces between them, and in a frame of WIDE cells or more.
GAP, WIDE, WIDE_GAP = 1, 90, 2


def picture(board: Board, seconds: float, now: float, width: int, height: int) -> list[Text]:
    """The frame as lines, ``height`` of them and at most ``width`` cells wide.

    ``seconds`` is the time since the demo began, ``now`` the Unix time.
    """
    width = min(width, MAX_WIDTH)
    news = min(12, height // 4)
    rows = height - news - 6
    gap = WIDE_GAP if width >= WIDE else GAP
    lines = [_title(seconds, width), *_processes(board, width), Text("─" * width, "dim")]
    lines += _padded([_header(gap), *(_row(row, now, width, gap) for row in board.newest(rows))], rows + 1)
    lines.append(Text("─" * width, "dim"))
    began = now - seconds
    lines += _padded([_news(item, began) for item in board.news[-news:]], news)
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _padded(lines: Sequence[Text], number: int) -> list[Text]:
    return [*lines, *(Text() for _ in range(number - len(lines)))]


def _joined(cells: Sequence[Text], gap: int) -> Text:
    return Text(" " * gap).join(cells)


def _cell(text: str | Text, width: int, style: str = "") -> Text:
    cell = Text(text, style) if isinstance(text, str) else text
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell


def _title(seconds: float, width: int) -> Text:
    clock = f"{int(seconds)} s"
    return Text.assemble(_cell(TITLE, width - len(clock), "bold"), (clock, "bold"))


def _processes(board: Board, width: int) -> list[Text]:
    """Two lines: the processes and their states, and below each what it has done."""
    column = width // 4
    states, counts = Text(), Text()
    for process in board.processes.values():
        symbol, style = PROCESS_STYLES[process.state]
        states.append_text(_cell(Text.assemble((f"{symbol} {process.name} {process.state}", style)), column))
        counts.append_text(_cell(f"  {_deeds(process)}", column))
    return [states, counts]


def _deeds(process: ProcessState) -> str:
    return f"{'claimed' if process.claims else 'executed'} {process.count}"


def _header(gap: int) -> Text:
    cells = [_cell(name, size, "dim") for name, size in COLUMNS]
    return _joined([*cells, Text("state", "dim")], gap)


def _row(row: Row, now: float, width: int, gap: int) -> Text:
    late = row.late
    if late is not None:
        lateness = Text(f"{late:4.2f} s".rjust(6), "yellow" if late >= 1 else "")
    else:
        lateness = Text(f"{max(int(now - row.window.due), 0)} s".rjust(6), "dim")
    sizes = [size for _, size in COLUMNS]
    cells = [
        _cell(f"{row.window.entry:<9} {row.window.start[11:19]}", sizes[0]),
        _cell(row.claimed_by or "?", sizes[1]),
        _cell(_executed_by(row), sizes[2]),
        lateness,
    ]
    room = width - sum(sizes) - gap * len(sizes)
    return _joined([*cells, _state(row, room)], gap)


def _executed_by(row: Row) -> Text:
    """The workers in the order in which they began, those that were killed marked and struck through."""
    names = []
    for execution in row.executions:
        if execution.state == "killed":
            names.append(Text.assemble(("✗ ", "bold red"), (execution.who, "red strike")))
        else:
            names.append(Text(execution.who))
    return Text(" → ").join(names) if names else Text("-", "dim")


def _state(row: Row, room: int) -> Text:
    """Its state and whether copies were refused, in the longest form for which there is room."""
    symbol, word, style = ROW_STYLES[row.state]
    long = {"interrupted": f"{word}: its lease runs out", "again": f"overdue, {word}"}.get(row.state, word)
    short = word
    if row.state in ("running", "done") and len(row.executions) > 1:
        short = f"execution {row.executions[-1].begun.attempt}"
        long = f"{word}, {short}"
    notes = (f"  ⊘ copy refused: {', '.join(row.refused)}", " ⊘ refused") if row.refused else ("",)
    forms = [(form, note) for note in notes for form in (long, short)]
    form, note = next((pair for pair in forms if len(symbol) + 1 + sum(map(len, pair)) <= room), forms[-1])
    return Text.assemble((f"{symbol} {form}", style), (note, "magenta"))


def _news(item: News, began: float) -> Text:
    symbol, style = NEWS_STYLES[item.kind]
    return Text.assemble((f"{item.at - began:5.1f} s ", "dim"), (f"{symbol} {item.text}", style))


def verdict_panel(verdict: Verdict) -> RenderableType:
    """The verdict, framed: green and with a tick if all is as promised, else red, with each fault."""
    wrong = bool(verdict.faults)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(style="dim")
    for name, figure, words in verdict.rows():
        table.add_row(name, Text(figure, "bold"), Text(words))
    faults = [Text(f"✗ {fault}", "bold red") for fault in verdict.faults]
    return Panel(
        Group(table, *faults),
        title=Text(f"{'✗' if wrong else '✓'} {verdict.headline}", "bold red" if wrong else "bold green"),
        title_align="left",
        border_style="red" if wrong else "green",
        expand=False,
        padding=(0, 1),
    )
