"""A beat finds the overdue windows of children, and makes their messages of what Redis keeps."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from celery_once_beat.beat import BeatEntry, Changes, guard
from celery_once_beat.beat.part import BeatPart
from celery_once_beat.beat.sources import Source
from celery_once_beat.schedules import Definition
from celery_once_beat.store import member_of, raised
from celery_once_beat.windows import CHILD, WindowKey, is_child

from .store import read_messages


class Children(Source):
    """It has no entries, but knows those of children whose windows are open."""

    noun, action = "child", "child_unreadable"

    def __init__(self, beat: Any) -> None:
        super().__init__(beat.entries)
        beat.entries.sources.append(self)
        self._store, self._app = beat.store, beat.app
        #: What was looked for since the last poll.
        self._sought: set[str] = set()

    def poll(self) -> Changes:
        """Return nothing: nobody claims a child. Forget those that couldn't be read and are gone."""
        self.wrong = {name: self.wrong[name] for name in self.wrong.keys() & self._sought}
        self._sought = set()
        return Changes()

    def find(self, windows: Collection[WindowKey]) -> tuple[dict[WindowKey, BeatEntry], set[WindowKey]]:
        """Return the entries of children; those whose message can't be read stay open. Raises StoreUnavailableError."""
        children = [window for window in windows if is_child(window.entry)]
        self._sought.update(map(member_of, children))
        found: dict[WindowKey, BeatEntry] = {}
        unread: set[WindowKey] = set()
        for window, message in zip(children, read_messages(self._store, children) if children else (), strict=True):
            if message is None:  # it has just ended
                continue
            unread.add(window)
            with guard(partial(self.leave_out, member_of(window))):
                definition = Definition.read(window.entry, raised(message))
                found[window] = self._all.make_stored(self._app, window.entry, definition, window.start, CHILD)
        return found, unread - found.keys()


class Part(BeatPart):
    """A beat's source of children."""

    def __init__(self, beat: Any) -> None:
        super().__init__(beat)
        Children(beat)
