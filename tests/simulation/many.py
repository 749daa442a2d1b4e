"""Plays more than one process can: episodes on several cores, and the simulation without each rule in turn.

The processes that it starts play; this one has the machine's clock, and adds up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from .ablations import ABLATIONS, SURVIVORS
from .totals import Played, Total
from .verdict import rule_of

#: A rule survives if so many seeds, one after another, show no fault without it.
_SEEDS = 3
#: Seconds between two lines that say how far it is.
_TOLD_EVERY = 60.0


def run(given: argparse.Namespace) -> int:
    """Run what the arguments say; returns the status to end with."""
    cores = given.cores or 1
    if given.ablations:
        names = given.only.split(",") if given.only else list(ABLATIONS)
        return ablations(given.seed, given.windows, cores, names)
    return play(given.seed, given.first, given.windows, cores, ["--model"] if given.model else [])


def _simulation(*words: object) -> list[str]:
    return [sys.executable, "-m", "simulation", *map(str, words)]


def play(seed: int, first: int, windows: int, cores: int, more: list[str]) -> int:
    """Play episodes until there are so many windows, or SIGTERM comes; the digest is that of one process."""
    total = Total()
    begun = said = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="once-simulations-") as folder:  # players that are ended leave theirs in it
        players = [
            subprocess.Popen(
                _simulation(
                    "--seed", seed, "--first", first + core, "--step", cores, "--windows", windows, "--tell", *more
                ),
                env={**os.environ, "ONCE_SIMULATIONS": folder}, stdout=subprocess.PIPE, text=True,
            )
            for core in range(cores)
        ]  # fmt: skip
        signal.signal(signal.SIGTERM, lambda *_: players[0].terminate())
        # A process and its server take turns. On one core, neither has to wake another core.
        for core, player in zip(itertools.cycle(os.sched_getaffinity(0)), players, strict=False):
            os.sched_setaffinity(player.pid, {core})
        try:
            while total.windows < windows:
                player = players[total.episodes % cores]
                line = player.stdout.readline() if player.stdout else ""
                if not line and (status := player.wait()) == -signal.SIGTERM:
                    break
                if not line:
                    print(f"a process that plays ended with {status}", file=sys.stderr)
                    return 2
                played = Played(**json.loads(line))
                played.tell_wrong(seed)
                total.add(played)
                if time.monotonic() - said > _TOLD_EVERY:
                    said = time.monotonic()
                    print(f"after {said - begun:.0f} s: {total}", file=sys.stderr, flush=True)
        finally:
            for player in players:
                player.terminate()
                player.wait()
    total.tell()
    return 1 if total.wrong else 0


def ablations(seed: int, windows: int, cores: int, names: list[str]) -> int:
    """Print a table: each rule, and with which seed and after how many windows the simulation fails without it."""
    survivors = []

    def play_without(name: str) -> tuple[str, int, str]:
        """By what it was found, or nothing; with which seed; after how many windows."""
        for each in range(seed, seed + _SEEDS):
            command = _simulation("--model", "--seed", each, "--windows", windows, "--until-wrong", "--without", name)
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = ran.stdout.splitlines()
            wrong = [line for line in lines if line.startswith("seed ")]
            if ran.returncode != bool(wrong):  # Python ends with 1, too, if the simulation itself fails
                sys.exit(f"{name}: the simulation ended with {ran.returncode}: {ran.stderr[-300:]}")
            if wrong:
                after = next(line for line in lines if " windows, " in line).partition(" ")[0]
                rules = (rule_of(line.partition(": ")[2]) for line in wrong)
                return min(rules, key="model".__eq__), each, after  # where the judge sees it too, its rule says more
        return "", 0, ""

    with ThreadPoolExecutor(cores) as several:
        for name, (found, by, after) in zip(names, several.map(play_without, names), strict=True):
            if not found:
                survivors.append(name)
            why = SURVIVORS[name].why if name in SURVIVORS else "?"
            row = f"`{found}` | {by} | {int(after):,}" if found else f"survives: {why}"
            print(f"| {name} | {ABLATIONS[name].rule} | {row} |", flush=True)
    print(f"{len(names)} rules, {len(survivors)} survive: {', '.join(survivors)}")
    others = set(survivors) ^ (SURVIVORS.keys() & {*names})
    if others:
        print(f"SURVIVORS of ablations.py says otherwise of {', '.join(sorted(others))}")
    return 1 if others else 0
