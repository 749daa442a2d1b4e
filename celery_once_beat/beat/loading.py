"""Loads: a beat tells the store its entries' definitions, and learns from which cursors they continue.

A beat that dies here has changed nothing that another beat's load doesn't set right. One that slept loads again: the
reply to its next sweep shows that the store has forgotten it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from itertools import compress
from operator import itemgetter

from celery_once_beat.clock import steady
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import same_definition
from celery_once_beat.store import SET_ANEW, Loaded, LoadRequest, Store, Superseded
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import shown, some

from .entries import Entries
from .entry import BeatEntry
from .server_clock import CURSOR_AHEAD, ServerClock

logger = get_logger(__name__)

_LoadReply = Loaded | Superseded | OnceError

#: The action that is logged for a load's news.
_NEWS = {"new": "entry_new", "changed": "entry_changed", "back": "entry_back"}

#: Entries that are loaded in one pipeline.
_CHUNK = 500
#: Seconds of a tick for loading entries.
_LOADING = 1.0
#: Entries that one line names.
_MOST_NAMED = 10
#: Losses of entries within so many seconds are one event.
_LOSING = 60.0


class Loading:
    """One beat's loads. Its entries continue, pause or rest by the store's replies."""

    def __init__(self, store: Store, entries: Entries, clock: ServerClock, beat: str) -> None:
        self._store = store
        self._entries = entries
        self._clock = clock
        self._beat = beat
        #: Entry → the beat whose definition of it counts.
        self._superseded_by: dict[str, str] = {}
        #: Entry → the definition with which it left the schedule, until the store knows.
        self._left: dict[str, str] = {}
        #: Seconds by which the server's clock is behind the latest cursor; 0 if by no more than CURSOR_AHEAD.
        self.behind = 0.0
        #: Entries that the store lost, which is yet to be noted there; and when the last were (``clock.steady``).
        self._lost: list[str] = []
        self._lost_at = -_LOSING
        #: The cursors that are so far ahead.
        self._ahead: dict[str, datetime] = {}

    def unload(self, entries: Mapping[str, str]) -> None:
        """Note that entries, name → fingerprint, are in no schedule any more: :meth:`load` tells the store."""
        self._left.update(entries)

    def reload_superseded(self, alive: Collection[str]) -> None:
        """Load entries again whose superseding beat isn't ``alive`` any more."""
        for name in [name for name, beat in self._superseded_by.items() if beat not in alive]:
            del self._superseded_by[name]
            self._entries.wake(name)

    def load(self) -> None:
        """Tell the store this beat's definitions, and learn the cursors, for as many entries as there is time for.

        The rest is left to the next call, so that a beat with many entries sends heartbeats and claims meanwhile.
        Raises StoreUnavailableError; where that concerns one node of a cluster, after all others are loaded.
        """
        away: StoreUnavailableError | None = None
        until = steady() + _LOADING
        self._unload()
        # What is paused comes behind what isn't loaded.
        left = deque([*self._entries.unloaded(), *self._entries.paused()])
        for chunk in self._load_requests(left, until):
            entries, requests = zip(*chunk, strict=True)
            for entry, reply in zip(entries, self._store.load_many(requests), strict=True):
                if entry.progress.loaded_at and isinstance(reply, Loaded) and reply.news == "new":
                    self._lost.append(entry.name)
                away = self._answered(entry, reply) or away
        if self._lost:
            self._note_lost()
        self._log_cursors_ahead()
        if away is not None:
            raise away

    def _note_lost(self) -> None:
        """Say that the store has lost entries which this beat had loaded: once, though it loads them bit by bit.

        Raises StoreUnavailableError; then the next call says it.
        """
        self._store.note_loss(len(self._lost), self._clock.now())
        names, self._lost = self._lost, []
        before, self._lost_at = self._lost_at, steady()
        if self._lost_at - before > _LOSING:
            text = (
                "once: Redis has lost its data, or evicts keys: it doesn't know %s any more, which this beat had "
                "loaded. They continue from where this beat knew them, and paused where it knew of that. What was "
                "open, other pauses, the histories and the log of orders are gone"
            )
            extra = about("data_lost", entries=sorted(names)[:_MOST_NAMED], owner=self._beat)
            logger.error(text, some([*map(shown, sorted(names))], _MOST_NAMED), extra=extra)

    def _load_requests(self, left: deque[BeatEntry], until: float) -> Iterator[list[tuple[BeatEntry, LoadRequest]]]:
        """Yield chunks of what is ``left``, until the time is over; one at least."""
        while left:
            now = self._clock.now()
            chunk: list[tuple[BeatEntry, LoadRequest]] = []
            while left and len(chunk) < _CHUNK and (not chunk or steady() < until):
                entry = left.popleft()
                with self._entries.isolate(entry):
                    chunk.append((entry, entry.load_request(self._beat, now, self._entries.summary(entry))))
            if chunk:
                yield chunk
            if steady() > until:
                return

    def _answered(self, entry: BeatEntry, reply: _LoadReply) -> StoreUnavailableError | None:
        """Apply the store's reply for an entry; returns the error if its node doesn't answer."""
        if isinstance(reply, StoreUnavailableError):
            self._entries.load_last(entry)
            return reply
        if isinstance(reply, Loaded):
            with self._entries.isolate(entry):
                self._loaded(entry, reply)
        elif isinstance(reply, Superseded):
            self._superseded(entry, reply)
        else:
            self._entries.rest(entry, reply, action="entry_unreadable")
        return None

    def _unload(self) -> None:
        left = [(name, fingerprint) for name, fingerprint in self._left.items() if self._entries.get(name) is None]
        replies = self._store.unload_many(self._beat, left) if left else []
        # One node of a cluster may be away: its entries are unloaded later.
        away = [isinstance(reply, StoreUnavailableError) for reply in replies]
        self._left = dict(compress(left, away))

    def _loaded(self, entry: BeatEntry, reply: Loaded) -> None:
        entry.apply_load(reply)
        if reply.news != "same" and logger.isEnabledFor(logging.INFO):
            cursor = format_instant(reply.cursor)
            extra = about(_NEWS[reply.news], entry=entry.name, start=cursor, owner=self._beat)
            logger.info("once: entry %r is %s, its windows count from %s", entry.name, reply.news, cursor, extra=extra)
        self._ahead.pop(entry.name, None)
        if reply.cursor > self._clock.now() + CURSOR_AHEAD:
            self._rest_ahead(entry, reply.cursor)
        elif reply.pause:
            self._entries.pause(entry)
        else:
            self._entries.continue_from(entry, reply.cursor)

    def _rest_ahead(self, entry: BeatEntry, cursor: datetime) -> None:
        """Let it rest: its ``cursor`` is in the future. It is loaded again later, since somebody may delete its key."""
        self._ahead[entry.name] = cursor
        self._entries.rest(entry)  # one line names them all

    def _log_cursors_ahead(self) -> None:
        """Log once, while it lasts, that the server's clock is behind windows that were claimed."""
        now = self._clock.now()
        for entry in self._entries.beyond(now + CURSOR_AHEAD):
            assert entry.cursor is not None
            self._rest_ahead(entry, entry.cursor)
        ahead = {name: cursor for name, cursor in self._ahead.items() if self._entries.get(name) is not None}
        if ahead and not self.behind:
            name, cursor = max(ahead.items(), key=itemgetter(1))
            text = (
                "once: entry %r and %d others aren't claimed: their cursors are in the future, up to %s, as if the "
                "Redis server's clock had gone back. Set it right. If it was wrong before: delete the key %s, and "
                "those of the others, to continue at once; windows up to there may then run once more"
            )
            values = name, len(ahead) - 1, format_instant(cursor), self._store.entry_key(name)
            extra = about("entry_cursor_ahead", entry=name, entries=sorted(ahead)[:_MOST_NAMED], owner=self._beat)
            logger.error(text, *values, extra=extra)
        elif self.behind and not ahead:
            logger.info("once: all entries are claimed again", extra=about("entry_cursors_reached", owner=self._beat))
        self._ahead = ahead
        self.behind = (max(ahead.values()) - now).total_seconds() if ahead else 0.0

    def _superseded(self, entry: BeatEntry, reply: Superseded) -> None:
        # Each sweep shows whether that beat lives. Until it is gone, the entry needn't be loaded again.
        self._superseded_by[entry.name] = reply.beat
        if reply.beat == SET_ANEW:
            self._entries.rest(entry)  # it was set again, or another row gets its name: a later sweep finds that
            return
        entry.apply_superseded(reply)
        reason = f"beat {reply.beat} loaded another definition of it later; that one counts while its beat lives"
        if same_definition(reply.fingerprint, entry.fingerprint):
            reason = (
                f"beat {reply.beat} loaded it later, with other rules of its time zone; those count while that beat "
                "lives. Install the same tzdata (for solar schedules: ephem) on all machines"
            )
        self._entries.rest(entry, reason, action="entry_superseded", level=logging.WARNING)
