"""What a reader that looks again and again keeps from one look to the next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .seen import Due, EntrySeen

#: Seconds after which all is read anew.
_REMEMBERED = 30.0


class Remembered:
    """What the looks of one caller have found, so that the next one reads what has changed since.

    An entry's hash tells: whatever changes an entry changes it. A foreign hand may change another of its keys alone, so
    all is read again now and then.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self._seen: dict[str, EntrySeen] = {}
        self._digests: dict[str, str] = {}
        self._read_at = -_REMEMBERED

    def is_old(self) -> bool:
        """Whether all has to be read again."""
        return time.monotonic() - self._read_at >= _REMEMBERED

    def changed(self, names: Sequence[str], digests: dict[str, str], due: Due) -> list[str]:
        """Return which entries to read again."""
        if self.is_old() or due.trouble:
            self._seen, self._read_at = {}, time.monotonic()
        return [
            name
            for name in names
            if name not in self._seen
            or not digests[name]
            or self._digests.get(name) != digests[name]
            or self._seen[name].overdue != due.windows.get(name, {})
        ]

    def has_new_definitions(self, read: Mapping[str, EntrySeen]) -> bool:
        """Whether beats loaded or left one of these since."""
        return any(_loaders(seen) != _loaders(self._seen.get(name)) for name, seen in read.items())

    def keep(
        self, names: Sequence[str], digests: dict[str, str], read: Mapping[str, EntrySeen]
    ) -> dict[str, EntrySeen]:
        """Return all entries, those that were read anew among them; ``digests`` were asked for before that."""
        self._seen = {name: read.get(name) or self._seen[name] for name in names}
        self._digests = digests
        return dict(self._seen)


def _loaders(seen: EntrySeen | None) -> tuple[object, object]:
    account = seen.account if seen else None
    return (account.fingerprint, account.loaders) if account else (None, None)
