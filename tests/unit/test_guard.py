"""What belongs to one entry: it may take a second, and ends nothing else."""

from __future__ import annotations

import logging
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

from celery.utils.dispatch import Signal

from celery_once_beat.beat import guard

guarded: Any = import_module("celery_once_beat.beat.guard")


def work(numbers: list[int]) -> None:
    numbers.append(1)
    numbers.append(2)


def interrupted(point: int) -> tuple[bool, list[str]]:
    """Let the clock say at an instruction of a block, or of its begin or end, that the time is over.

    Returns whether there are so many instructions, and why the block failed.
    """
    left, failed, clock = point, [], guarded._clock

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode" and clock.running:
            left -= 1
            if left == 0:
                clock._ticks = guarded._MOST_TICKS
                clock._tick(signal.SIGALRM, frame)
        return trace

    def block() -> None:
        with guard(failed.append):
            work([])

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        block()
    finally:
        sys.settrace(before)
    return left <= 0, failed


def test_the_clock_stops_with_its_block() -> None:
    """At whichever instruction the time is over: outside of the block nothing is raised, then or later."""
    point, failures = 1, 0
    while True:
        reached, failed = interrupted(point)
        assert not guarded._clock.running
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        if not reached:
            break
        assert set(failed) <= {"it took longer than 1 s"}
        point, failures = point + 1, failures + len(failed)
    assert 5 < failures < point - 20, "it is raised in what the block calls"


def too_long(*_: Any, **__: Any) -> None:
    """Take longer than an entry may."""
    for _tick in range(2 * guarded._MOST_TICKS):
        guarded._clock._tick(signal.SIGALRM, sys._getframe())


def test_handlers_and_receivers_take_no_entrys_time() -> None:
    """A slow one of the log, or of a signal, belongs to no entry; what calls it does."""
    failed: list[str] = []
    handler, log, sent = logging.Handler(), logging.getLogger("tests"), Signal()
    handler.emit = too_long  # type: ignore[method-assign]
    log.addHandler(handler)
    log.propagate = False
    sent.connect(too_long, weak=False)
    with guard(failed.append):
        log.error("")
        sent.send(sender=None)
    assert not failed
    with guard(failed.append):
        too_long()
    assert failed == ["it took longer than 1 s"]
