"""The demo as a live picture in a terminal, drawn by rich."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .board import Board
from .ledger import Event
from .picture import MIN_HEIGHT, MIN_WIDTH, picture, verdict_panel
from .telling import Act
from .verdict import Verdict

__all__ = ("FRAME", "LiveView", "fits")

#: Seconds between two looks at what has changed.
FRAME = 0.25


def fits(console: Console) -> bool:
    """Whether the console is a terminal that can redraw itself, is large enough, and has the symbols."""
    return (
        console.is_interactive
        and console.encoding.startswith("utf")
        and console.width >= MIN_WIDTH
        and console.height > MIN_HEIGHT
    )


class LiveView:
    """Draws the board again whenever it has changed. ``began`` is the Unix time from which its seconds count."""

    def __init__(self, console: Console, began: float) -> None:
        self._console = console
        self._began = began
        self._board = Board()
        self._lines: list[Text] = []
        self._next = 0.0
        # Drawn by whoever tells, not by a thread: what is on the screen then never lags behind what was done.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._closed = False

    def open(self) -> None:
        """Take the terminal."""
        self._live.start()
        self._draw()

    def tell(self, what: Act | Event) -> None:
        """Take note of what happened."""
        self._board.tell(what)

    def refresh(self) -> None:
        """Draw, if it is time for a look."""
        if time.monotonic() >= self._next:
            self._draw()

    def close(self) -> None:
        """Draw the last state, and give the terminal back."""
        if not self._closed:
            self._closed = True
            try:
                self._draw()
            finally:
                self._live.stop()

    def conclude(self, verdict: Verdict) -> None:
        """Print the verdict below the last frame."""
        self._console.print(verdict_panel(verdict))

    def _draw(self) -> None:
        self._next = time.monotonic() + FRAME
        now = time.time()
        size = self._console.size
        # A line is left free, for the cursor: a frame as high as the terminal would scroll it.
        lines = picture(self._board, now - self._began, now, size.width, size.height - 1)
        if lines != self._lines:
            self._lines = lines
            self._live.update(Group(*lines), refresh=True)
