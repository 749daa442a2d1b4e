"""What belongs to one entry: it may take a second, and ends nothing else. Signals wait for the end of a block."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from types import FrameType
from typing import Any

import pytest
from celery.utils.dispatch import Signal

from celery_once_beat.beat import guard
from celery_once_beat.beat.stopping import held_back

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


# -- signals that are held back: for the length of a block, and for no other process


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals that this process's own handlers were given."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda which, _frame: came.append(which)) for number in numbers]
    yield came
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_signals_wait_for_the_end_of_the_block(came: list[int]) -> None:
    """Each is delivered once, to the handler that was there."""
    with held_back():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert came == []
    assert came == [signal.SIGTERM, signal.SIGINT]
    signal.raise_signal(signal.SIGTERM)
    assert came[2:] == [signal.SIGTERM]


def test_a_handler_that_raises_keeps_no_other_back(came: list[int]) -> None:
    """As Celery's do, which end the process."""

    def end(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)

    def both() -> None:
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit):
        both()
    assert came == [signal.SIGINT]


def test_a_process_that_is_started_meanwhile() -> None:
    """SIGTERM ends it, as if nothing were held back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with held_back():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            child.terminate()
            assert child.wait(60) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_ignored_or_set_meanwhile_stays_so(came: list[int]) -> None:
    """The block sets back nothing but its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert came == []
