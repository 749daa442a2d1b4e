"""Windows that are claimed with the store's verbs alone, as a beat would claim them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from steps import heard

from celery_once_beat.rules import EntryPolicy
from celery_once_beat.store import ClaimRequest, Confirmation, LoadRequest, Published, Store
from celery_once_beat.windows import WindowKey

BEAT, FINGERPRINT = "host-7f9c:12345:0123abcd", "0" * 16
DAY, HOUR = 86400.0, 3600.0


class ClaimedWindows:
    """The windows of so many entries, one after the other; ``windows`` has the latest of each that was claimed."""

    def __init__(self, store: Store, entries: int, interval: timedelta, ago: timedelta) -> None:
        self._store, self._interval = store, interval
        cursor = datetime.now(timezone.utc).replace(microsecond=0) - ago
        self.windows = [WindowKey(f"proj.reports.nightly-{number:05d}", cursor) for number in range(entries)]
        heard(store, BEAT)
        limits = EntryPolicy()
        store.load_many(LoadRequest(key.entry, BEAT, FINGERPRINT, DAY, limits, known=cursor) for key in self.windows)

    def claim(self) -> list[int]:
        """Claim the next window of each entry; returns the turns of their publishes."""
        before = self.windows
        self.windows = [WindowKey(window.entry, window.start + self._interval) for window in before]
        replies = self._store.claim_many(
            BEAT,
            [
                ClaimRequest(window, last.start, FINGERPRINT)
                for window, last in zip(self.windows, before, strict=True)
            ],
        )  # fmt: skip
        assert {type(reply).__name__ for reply in replies} == {"Claimed"}, replies[0]
        return [reply.revision for reply in replies]

    def publish(self) -> list[WindowKey]:
        """Claim the next window of each entry, and say that its message went out."""
        turns = self.claim()
        self._store.confirm_many(
            Confirmation(window, turn, Published.SENT, HOUR) for window, turn in zip(self.windows, turns, strict=True)
        )
        return self.windows
