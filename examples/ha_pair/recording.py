"""The live view on a screen of a fixed size that nobody sees, kept frame by frame and written as an animated SVG."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path

from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from .board import Board
from .ledger import Event
from .live import FRAME
from .picture import picture, verdict_panel
from .svg import BACKGROUND, FOREGROUND, Frame, Line, Span, film
from .telling import Act, NotShownError
from .verdict import Verdict

__all__ = ("RecordingView",)

COLUMNS, ROWS = 100, 30
#: Seconds for which the verdict stays before the film begins again.
HOLD = 10.0
TITLE = "make demo"
_NORMAL = ("#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4")


def _rgb(text: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


THEME = TerminalTheme(_rgb(BACKGROUND), _rgb(FOREGROUND), [_rgb(color) for color in _NORMAL])


class RecordingView:
    """Writes the film to ``path`` once there is a verdict. ``began`` is the Unix time from which its seconds count."""

    def __init__(self, path: Path, began: float) -> None:
        self._path = path
        self._began = began
        self._board = Board()
        self._console = Console(
            file=io.StringIO(), width=COLUMNS, height=ROWS, force_terminal=True, color_system="truecolor",
            legacy_windows=False, no_color=False, _environ={},
        )  # fmt: skip
        self._lines: list[Text] = []
        self._next = 0.0
        self.frames: list[Frame] = []

    def open(self) -> None:
        """The film begins with the first window: until then there is nothing to see."""

    def tell(self, what: Act | Event) -> None:
        """Take note of what happened."""
        self._board.tell(what)

    def refresh(self) -> None:
        """Keep a frame, if it is time for a look."""
        if time.monotonic() >= self._next:
            self._take()

    def close(self) -> None:
        """Keep the last state."""
        self._take()

    def conclude(self, verdict: Verdict) -> None:
        """As in a terminal: the verdict follows the last frame, which scrolls as far as it must."""
        self._add([*self._lines, verdict_panel(verdict)])
        text = film(self.frames, columns=COLUMNS, rows=ROWS, hold=HOLD, title=TITLE)
        part = self._path.with_name(self._path.name + ".part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self._path)
        except OSError as exc:
            raise NotShownError(f"the recording isn't kept: {exc}") from exc

    def _take(self) -> None:
        """Keep what the live view shows now, if it has changed."""
        self._next = time.monotonic() + FRAME
        now = time.time()
        lines = picture(self._board, now - self._began, now, COLUMNS, ROWS - 1)
        if lines != self._lines and self._board.rows:
            self._lines = lines
            self._add(lines)

    def _add(self, renderables: Iterable[RenderableType]) -> None:
        lines = self._console.render_lines(Group(*renderables), pad=False)
        self.frames.append(Frame(time.time() - self._began, tuple(_line(line) for line in lines[-ROWS:])))


def _line(segments: Iterable[Segment]) -> Line:
    spans: list[Span] = []
    for segment in segments:
        text, css = segment.text.rstrip("\n"), _css(segment.style)
        if not text:
            continue
        if spans and spans[-1].style == css:
            spans[-1] = Span(spans[-1].text + text, css)
        else:
            spans.append(Span(text, css))
    while spans and not spans[-1].text.strip():
        spans.pop()
    return tuple(spans)


def _css(style: Style | None) -> str:
    """What the picture uses of a style: colour, bold, dim, struck through."""
    if style is None:
        return ""
    rules = []
    if style.color is not None and style.color != Color.default():
        rules.append(f"fill:{style.color.get_truecolor(THEME).hex}")
    if style.bold:
        rules.append("font-weight:bold")
    if style.dim:
        rules.append("opacity:.65")
    if style.strike:
        rules.append("text-decoration:line-through")
    return ";".join(rules)
