"""Signals that are held back: for the length of a block, and for no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from processes import wait_until

from celery_once_beat.beat.stopping import held_back


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


def _subprocess() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.returncode = 0  # whoever asked for it waits for it, not this object
    return child.pid


def _fork() -> int:
    child = os.fork()
    if not child:
        try:
            time.sleep(600)
        finally:
            os._exit(7)
    return child


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has several threads, and forks
@pytest.mark.parametrize("start", [_subprocess, _fork])
def test_a_process_that_is_started_meanwhile(start: Callable[[], int]) -> None:
    """SIGTERM ends it, as if nothing were held back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with held_back():
            child = start()

            def ended() -> tuple[int, int]:
                os.kill(child, signal.SIGTERM)  # Python forgets what comes within fork()
                return os.waitpid(child, os.WNOHANG)

            _, status = wait_until(lambda: (found := ended())[0] and found, "it ends", 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_what_is_ignored_or_set_meanwhile_stays_so(came: list[int]) -> None:
    """The block sets back nothing but its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert came == []
