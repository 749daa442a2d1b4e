"""What there is to tell, and who can be told: the story goes on without knowing how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .ledger import Event, WindowKey
from .verdict import Verdict

__all__ = ("Act", "News", "NotShownError", "Several", "View", "news_of")


@dataclass(frozen=True)
class Act:
    """Something that the story did, at Unix time ``at``: ``text`` says it.

    ``kind`` is ``started``, ``killed`` or ``stopped`` (the process ``who``), ``copied`` (the message of ``window``),
    or ``told`` for anything else. A process that was only just started isn't worth a line: its text is empty.
    """

    kind: str
    at: float
    text: str = ""
    who: str = ""
    window: WindowKey | None = None


class News(NamedTuple):
    """A line of what happened; ``kind`` is the act's, or ``takeover``, ``again`` or ``refused``."""

    kind: str
    at: float
    text: str


def news_of(what: Act | Event) -> News | None:
    """The line for it, if it is more than the daily round of claims and executions."""
    if isinstance(what, Act):
        return News(what.kind, what.at, what.text) if what.text else None
    if what.kind == "start" and what.attempt > 1:
        text = f"{what.who}  takes over {what.window}, execution {what.attempt}"
        return News("takeover", what.at, text)
    if what.kind == "published" and what.again:
        return News("again", what.at, f"{what.who}    published {what.window} again: it is overdue")
    if what.kind == "refused":
        because = {"closed": "it has ended", "busy": "it is running", "running": "it is running"}
        why = f"{what.refusal}, {because.get(what.reason, what.reason)}"
        return News("refused", what.at, f"{what.who}  refused a copy of {what.window}: {why}")
    return None


class NotShownError(Exception):
    """A view couldn't keep what it should have; says why."""


class View(Protocol):
    """One way to show the demo."""

    def open(self) -> None:
        """Begin; nothing was told before."""

    def tell(self, what: Act | Event) -> None:
        """Take note of what happened."""

    def refresh(self) -> None:
        """Show what was told; called many times a second, also if there is nothing new."""

    def close(self) -> None:
        """Show the last state and give the terminal back, whatever happened. Again: does nothing."""

    def conclude(self, verdict: Verdict) -> None:
        """Show the verdict; called once at most, after close. May raise NotShownError."""


class Several:
    """Shows the demo in several ways at once."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = views

    def open(self) -> None:
        """Open each."""
        for view in self._views:
            view.open()

    def tell(self, what: Act | Event) -> None:
        """Tell each."""
        for view in self._views:
            view.tell(what)

    def refresh(self) -> None:
        """Refresh each."""
        for view in self._views:
            view.refresh()

    def close(self) -> None:
        """Close each, even if another can't."""
        with ExitStack() as stack:
            for view in self._views:
                stack.callback(view.close)

    def conclude(self, verdict: Verdict) -> None:
        """Show the verdict in each."""
        for view in self._views:
            view.conclude(verdict)
