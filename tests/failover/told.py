"""What the store told a process, as lines of the ledger: the verb, the window, the answer."""

from __future__ import annotations

from typing import Any

from ledger import Ledger

from celery_once_beat.windows import WindowKey, format_instant

#: Answers that many get, and on which nobody acts.
_PLAIN = ("Moved", "Unchanged", "Busy")


def tell(ledger: Ledger, verb: str, window: WindowKey, answer: Any) -> None:
    name = type(answer).__name__
    if name not in _PLAIN:
        window_ = {"entry": window.entry, "start": format_instant(window.start)}
        ledger.write("told", verb=verb.removesuffix("_many"), answer=name, **window_)
