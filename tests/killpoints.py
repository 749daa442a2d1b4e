"""Kill points: a process of the system under test kills or freezes itself between two steps of the protocol.

``KILL_POINT`` names the step and the signal, as ``beat.claimed:KILL``; whoever gets there first does it, to its whole
process group, and no other does: ``KILL_MARKER`` is a file that only one can make. The package knows nothing of this.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

__all__ = ("POINTS", "install", "reach")

#: step → (class, method, before or after the call, whether a reply or the arguments make it count)
POINTS = {
    "beat.before_claim": ("store.Store", "claim_many", "before"),
    "beat.claimed": ("store.Store", "claim_many", "after"),
    "beat.published": ("beat.publishing.Publishing", "apply_async", "after"),
    "beat.before_confirm": ("store.Store", "confirm_many", "before"),
    "beat.confirmed": ("store.Store", "confirm_many", "after"),
    "beat.taken": ("beat.recovery.Recovery", "take", "after"),
    "worker.before_begin": ("store.Store", "begin", "before"),
    "worker.begun": ("store.Store", "begin", "after"),
    "worker.body": (),
    "worker.before_finish": ("store.Store", "finish", "before"),
    "worker.finished": ("store.Store", "finish", "after"),
    "worker.before_hand_over": ("store.Store", "hand_over", "before"),
    "worker.handed_over": ("store.Store", "hand_over", "after"),
    "worker.retry_published": ("worker.OnceTask", "apply_async", "after"),
}


def reach(point: str) -> None:
    """Tell that this process stands at ``point``."""
    wanted, _, name = os.environ.get("KILL_POINT", "").partition(":")
    if point != wanted:
        return
    marker = Path(os.environ["KILL_MARKER"])
    try:
        with marker.open("x") as file:
            file.write(f"{os.getpgid(0)}\n")
    except FileExistsError:
        return
    os.killpg(os.getpgid(0), getattr(signal, f"SIG{name}"))


def install() -> None:
    """Wrap the one method that ``KILL_POINT`` names."""
    point = os.environ.get("KILL_POINT", "").partition(":")[0]
    if not POINTS.get(point):
        return
    place, method, when = POINTS[point]
    module, _, class_name = place.rpartition(".")
    owner = getattr(__import__(f"celery_once_beat.{module}", fromlist=[class_name]), class_name)
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        if when == "before":
            reach(point)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        # An empty take did nothing; a claim that only lost does not stand in the gap either.
        if point not in ("beat.taken", "beat.claimed") or _won(result):
            reach(point)
        return result

    setattr(owner, method, wrapped)


def _won(result) -> bool:
    from celery_once_beat.store import Claimed

    if isinstance(result, tuple):  # of take: what to publish, and why it isn't all
        return bool(result[0])
    return any(isinstance(reply, Claimed) for reply in result)
