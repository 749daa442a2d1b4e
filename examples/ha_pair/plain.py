"""The demo as plain lines: for a pipe, a file, a log, a terminal that can do no more."""

from __future__ import annotations

from .ledger import Event, WindowKey
from .telling import Act, news_of
from .verdict import Verdict

__all__ = ("PlainView", "verdict_lines")


class PlainView:
    """Prints a line for whatever happens. ``began`` is the Unix time from which its seconds count."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._claimed: dict[WindowKey, str] = {}

    def open(self) -> None:
        """Nothing to begin."""

    def tell(self, what: Act | Event) -> None:
        """Print a line, if it is worth one."""
        if isinstance(what, Event) and what.kind == "claimed":
            self._claimed[what.window] = what.who
        text = self._text(what)
        if text:
            print(f"{what.at - self._began:5.1f} s  {text}", flush=True)

    def _text(self, what: Act | Event) -> str:
        news = news_of(what)
        if news is not None:
            return news.text
        if isinstance(what, Event) and what.kind == "start" and what.entry == "report":
            return f"{what.who}  started {what.window}"
        if isinstance(what, Event) and what.kind == "finish":
            execution = f", execution {what.attempt}" if what.attempt > 1 else ""
            beat = self._claimed.get(what.window)  # none, where it was killed between its claim and its word on it
            return f"{what.who}  finished {what.window}{execution}" + (f", claimed by {beat}" if beat else "")
        return ""

    def refresh(self) -> None:
        """Nothing is left to show."""

    def close(self) -> None:
        """Nothing to give back."""

    def conclude(self, verdict: Verdict) -> None:
        """Print the verdict."""
        print(*verdict_lines(verdict), sep="\n", flush=True)


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict as a table in plain text."""
    rows = [f"  {name:<20}{figure:>7}  {words}".rstrip() for name, figure, words in verdict.rows()]
    return [verdict.headline, *rows, *(f"  fault: {fault}" for fault in verdict.faults)]
