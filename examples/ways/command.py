"""The command: plays ways, one or several side by side, and prints what came of each.

Ends with status 0 if each window was executed once by celery-once-beat, and the way's own method showed its weakness;
1 if anything was otherwise, 130 if it was interrupted. Whatever happens, no process is left behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from celery_once_beat.errors import OnceError

from .stage import FailedError, Stage, StoppedError
from .story import OURS, OWN, Way, play
from .verdict import Verdict

__all__ = ("faults", "main", "table")

Verdicts = Mapping[str, Verdict]


def main(ways: Sequence[Way], arguments: Sequence[str] | None = None) -> int:
    """Play the ways with these arguments of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=f"{_names(ways)}: its own method, then celery-once-beat.")
    if len(ways) > 1:
        numbers = range(1, len(ways) + 1)
        parser.add_argument("--jobs", type=int, choices=numbers, default=len(ways), help="side by side (default: all)")
    options = parser.parse_args(arguments)

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopped.set())

    directory = Path(tempfile.mkdtemp(prefix="ways-"))
    keep = True
    if len(ways) > 1:
        _print(f"{len(ways)} ways side by side, each by its own method and by {OURS}: a good minute")
    try:
        played = _play_all(ways, directory, stopped, getattr(options, "jobs", 1))
        _print("\n".join(["", *table(ways, played)]))
        wrong = [fault for way, verdicts in zip(ways, played, strict=True) for fault in faults(way, verdicts)]
        _print("\n".join(["", *(wrong or [f"{OURS}: each window was executed once"])]))
        keep = bool(wrong)
        return 1 if wrong else 0
    except StoppedError:
        keep = False
        print("interrupted", file=sys.stderr)
        return 130
    except (FailedError, OnceError) as exc:
        print(f"ways: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # as with "| head"
        keep = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed
        return 1
    finally:
        if keep:
            print(f"logs and ledgers: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _play_all(ways: Sequence[Way], directory: Path, stopped: threading.Event, jobs: int) -> list[Verdicts]:
    """Play the ways, so many at a time; the story of a single one is told as it happens, others' in their order."""
    if len(ways) == 1:
        return [_play(ways[0], directory, stopped, _print)]
    stories: list[list[str]] = [[] for _ in ways]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(_play, way, directory, stopped, story.append) for way, story in zip(ways, stories, strict=True)
        ]
        played = []
        try:
            for job, story in zip(waiting, stories, strict=True):
                played.append(job.result())
                _print("\n".join(["", *story]))
        finally:
            stopped.set()  # where one failed the others end too
    return played


def _play(way: Way, directory: Path, stopped: threading.Event, say: Callable[[str], None]) -> Verdicts:
    """Play a way by both methods."""
    say(f"{way.letter}  {way.name}")
    verdicts = {}
    for method, folder in ((OWN, "own"), (OURS, "once")):
        say(f"   {method}")
        stage = Stage(directory / f"{way.letter}-{folder}", say, stopped)
        try:
            verdicts[method] = play(way, method, stage)
        finally:
            stage.end()
    return verdicts


def table(ways: Sequence[Way], played: Sequence[Verdicts]) -> list[str]:
    """What came of each way and method, a line each under a line of headings."""
    rows: list[tuple[str, ...]] = [("way", "method", "windows", "executed once", "twice", "lost")]
    for way, verdicts in zip(ways, played, strict=True):
        for method, verdict in verdicts.items():
            figures = (verdict.windows, verdict.once, len(verdict.twice), len(verdict.lost))
            rows.append((f"{way.letter}  {way.name}", method, *map(str, figures)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = (str.ljust, str.ljust, str.rjust, str.rjust, str.rjust, str.rjust)
    return ["  ".join(map(_aligned, row, sides, widths)) for row in rows]


def _aligned(cell: str, side: Callable[[str, int], str], width: int) -> str:
    return side(cell, width)


def faults(way: Way, verdicts: Verdicts) -> list[str]:
    """Each thing that isn't as it should be, in words."""
    ours, own = verdicts[OURS], verdicts[OWN]
    found = [
        *(f"{way.letter}: {window} is lost" for window in ours.lost),
        *(f"{way.letter}: {window} was executed twice" for window in ours.twice),
        *(f"{way.letter}: {entry} was executed for {start:.3f}, not a window of its" for entry, start in ours.unasked),
    ]
    if not ours.windows:
        found.append(f"{way.letter}: no window was owed")
    if not own.lost and not own.twice:
        found.append(f"{way.letter}: its own method showed no weakness: nothing to compare with")
    return found


def _print(text: str) -> None:
    print(text, flush=True)


def _names(ways: Sequence[Way]) -> str:
    return ", ".join(f"{way.letter} {way.name}" for way in ways)
