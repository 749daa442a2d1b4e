"""Kill points: a process of the system under test kills or freezes itself between two steps of the protocol.

``KILL_POINT`` names the step and the signal, as ``beat.claimed:KILL``; whoever gets there first does it, to its whole
process group, and no other does: ``KILL_MARKER`` is a file that only one can make. The package knows nothing of this.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What records ends: one, and those that waited.
_FINISH = ("store.Store.finish", "worker.leases.Leases._record")
#: step → (before or after the call, the methods); of some only a call counts that has something to do (_COUNTS).
POINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "beat.before_claim": ("before", ("store.Store.claim_many",)),
    "beat.claimed": ("after", ("store.Store.claim_many",)),
    "beat.published": ("after", ("beat.publishing.Publishing.apply_async",)),
    "beat.before_push": ("before", ("beat.learned.LearnedMessages._push",)),
    "beat.pushed": ("after", ("beat.learned.LearnedMessages._push",)),
    "beat.unconfirmed": ("before", ("beat.batches.Confirms._wait",)),
    "beat.broker_confirmed": ("after", ("beat.batches.Confirms._wait",)),
    "beat.before_confirm": ("before", ("store.Store.confirm_many",)),
    "beat.confirmed": ("after", ("store.Store.confirm_many",)),
    "beat.change_read": ("after", ("features.runtime.store.read_definitions",)),
    "beat.change_in_force": ("after", ("features.runtime.beat.Defined._read_chunk",)),
    "beat.telling": ("after", ("features.alerts.beat.take_alerts",)),
    "beat.before_told": ("before", ("features.alerts.beat.alerted",)),
    "beat.taken": ("after", ("beat.recovery.Recovery.take",)),
    "beat.before_due": ("before", ("features.admission.beat.make_due",)),
    "beat.due": ("after", ("features.admission.beat.make_due",)),
    "worker.before_begin": ("before", ("worker.leases.Leases.begin",)),
    "worker.begun": ("after", ("worker.leases.Leases.begin",)),
    "worker.acquired": ("after", ("features.admission.worker.acquire_slot",)),
    "worker.before_release": ("before", ("features.admission.worker.release_slot",)),
    "worker.released": ("after", ("features.admission.worker.release_slot",)),
    "worker.waits": ("after", ("worker.leases.Leases.begin",)),
    "worker.body": ("", ()),
    "worker.body_returned": ("before", ("worker.execution.Execution._decide",)),
    "worker.traced": ("before", ("worker.execution.Execution.close",)),
    "worker.end_waits": ("after", ("worker.leases.Leases.end_soon",)),
    "worker.draining": ("before", ("worker.leases.Leases.record_all",)),
    "worker.before_finish": ("before", _FINISH),
    "worker.finished": ("after", _FINISH),
    "worker.before_hand_over": ("before", ("store.Store.hand_over",)),
    "worker.handed_over": ("after", ("store.Store.hand_over",)),
    "worker.before_child": ("before", ("features.keyed.children.open_child",)),
    "worker.child_open": ("after", ("features.keyed.children.open_child",)),
    "worker.child_published": ("before", ("features.keyed.children.TrackedChild._confirm",)),
    "worker.child_confirmed": ("after", ("features.keyed.children.TrackedChild._confirm",)),
    "worker.retry_published": ("after", ("worker.OnceTask.apply_async",)),
}


def _any(kind: str, field: str | None = None) -> Callable[[Any], bool]:
    """Whether one of the replies is of this type; and has something in ``field``."""
    return lambda replies: any(_is(reply, kind) and (field is None or getattr(reply, field)) for reply in replies)


def _is(reply: object, kind: str) -> bool:
    return type(reply).__name__ == kind  # by its name: an app imports this before the package


#: step → whether a call has something to do: by what it returned, or by its arguments before it is called.
_COUNTS: dict[str, Callable[[Any], bool]] = {
    "beat.claimed": _any("Claimed"),  # one that only lost doesn't stand in the gap
    "beat.change_read": bool,
    "beat.telling": _any("Alerts", "found"),
    "beat.taken": lambda taken: bool(taken[0]),  # what to publish, and why it isn't all
    "worker.acquired": lambda reply: _is(reply, "Acquired"),
    "worker.waits": lambda answer: _is(answer[0], "Waits"),
    "beat.due": lambda replies: "due" in replies,
    "worker.draining": lambda arguments: bool(arguments[0]._ends),
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
    """Wrap the methods that ``KILL_POINT`` names."""
    point = os.environ.get("KILL_POINT", "").partition(":")[0]
    when, places = POINTS.get(point, ("", ()))
    for place in places:
        path, _, method = place.rpartition(".")
        module, _, class_name = path.rpartition(".")
        owner = getattr(__import__(f"celery_once_beat.{module}", fromlist=[class_name]), class_name)
        setattr(owner, method, _wrapped(getattr(owner, method), point, when))


def _wrapped(original, point, when):
    counts = _COUNTS.get(point, lambda _: True)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        if when == "before":
            if counts(args):
                reach(point)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        if counts(result):
            reach(point)
        return result

    return wrapped
