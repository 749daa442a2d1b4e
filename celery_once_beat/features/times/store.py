"""How long windows of an entry took: the buckets in which ``lua/on_close.lua`` counts them, and how these are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from celery_once_beat.errors import StoreDataError
from celery_once_beat.store import EntryAccount
from celery_once_beat.store.codec import whole

#: Upper bounds of the buckets ms.
BOUNDS = (50, 250, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000)
CONSTANTS = {"BOUNDS": f"{{{', '.join(map(str, BOUNDS))}}}"}


@dataclass(frozen=True)
class Histogram:
    """How long something took, of many windows."""

    #: How many took up to so many ms, and longer than the next smaller bound; a bound may be infinite.
    counts: Mapping[float, int]
    #: Of all of them, ms.
    sum: int


def read_times(account: EntryAccount) -> Mapping[str, Histogram] | StoreDataError:
    """Read how long windows of an entry that ended took; returns an error where that can't be read.

    ``late``: from the start to the begin of the last execution; ``queued``: from the claim to the only begin; ``ran``:
    from the last begin to the end.
    """
    times = _read(account.times)
    return times or StoreDataError(
        f"the key {account.key!r} has no histograms in its field 'times': found {account.times!r:.40}, expected three "
        f"sums and counters like 'l50:3'; with HDEL {account.key} times they begin anew"
    )


@lru_cache(maxsize=64)  # of many entries no window has ended
def _read(text: str) -> dict[str, Histogram]:
    times: dict[str, Histogram] = {}
    if not re.fullmatch(r"(\d{1,15} ){2}\d{1,15}( [lqr](inf|\d{1,9}):\d{1,15})*", text, re.ASCII):
        return times
    for letter, name, sum_ in zip("lqr", ("late", "queued", "ran"), text.split(" "), strict=False):
        found = re.findall(rf" {letter}(\w+):(\d+)", text)
        times[name] = Histogram({float(bound): whole(number) for bound, number in found}, whole(sum_))
    return times
