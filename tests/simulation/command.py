"""Plays episodes: what ``python -m simulation`` does in a process whose clock stands still."""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from needs import NEEDS, need
from redis.exceptions import ConnectionError as RedisConnectionError

from .installed import install
from .network import Server
from .standing_clock import StandingClock, library
from .verdict import judged, rule_of

install()

from .episode import Episode, Plan, make_plan  # noqa: E402  # what they import finds what is installed
from .replay import Replay  # noqa: E402
from .shrink import shrunk  # noqa: E402
from .totals import Played, Total  # noqa: E402
from .world import Books  # noqa: E402


def _end_with_parent() -> None:
    """A run that is killed leaves no server behind (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def a_server(directory: Path) -> Iterator[tuple[Server, StandingClock]]:
    """A Redis whose clock stands still. Not Valkey: within a millisecond it goes by a counter of the processor's."""
    clock = StandingClock(directory / "server-clock", goes_on=True)
    clock.set(1_700_000_000 * 10**9, 0, 0)
    path = directory / "server"
    binary = NEEDS["redis-server"].of_wheel() or need("redis-server")
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "--unixsocket", path, "--port", "0", "--save", "", "--appendonly", "no", "--dir", directory],
            env={**os.environ, **clock.env(library(directory))}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  # no threads here
        )  # fmt: skip
    try:
        server = None
        while server is None:
            try:
                server = Server(str(path))
            except RedisConnectionError:
                assert process.poll() is None, (directory / "server.log").read_text()
        yield server, clock
        server.close()
    finally:
        process.kill()
        process.wait()


class Runner:
    """Runs episodes, one after the other."""

    def __init__(self, directory: Path, server: Server, server_clock: StandingClock, *, model: bool = False) -> None:
        self.server, self.server_clock, self._model = server, server_clock, model
        self.clock = StandingClock(directory / "clock")

    def run(self, plan: Plan) -> tuple[Books, list[str]]:
        """Run a plan; return what became of it, and what is wrong with that."""
        gc.collect()
        gc.freeze()  # Celery keeps some of each app for good: after a thousand, looking through that would take most
        model = Replay() if self._model else None
        result = Episode(plan, self.clock, self.server_clock, self.server, model).run()
        if model is not None:
            result.counted["histories that the model allows"] = model.histories
            result.counted["calls that the model allows"] = sum(model.calls.values())
            result.counted.update({f"not modelled: {what}": number for what, number in model.not_modelled.items()})
        return result, [*(f"a thread ended: {crash}" for crash in result.crashes), *judged(result)]


def run(directory: Path, given: argparse.Namespace) -> int:
    """Run what the arguments say; returns the status to end with."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()  # what is collected between two episodes is theirs
    with a_server(directory) as (server, clock):
        runner = Runner(directory, server, clock, model=given.model)
        if given.shrink:
            return shrink(runner, next(_plans(given))[1], given.shrink)
        return play(runner, given)


def _plans(given: argparse.Namespace) -> Iterator[tuple[int, Plan]]:
    """What is to be played, each with its number."""
    if given.plan:
        yield from enumerate(Plan(**json.loads(path.read_text())) for path in given.plan)
    elif given.episode is not None:
        yield given.episode, make_plan(f"{given.seed}/{given.episode}")
    else:
        for number in itertools.count(given.first, given.step):
            yield number, make_plan(f"{given.seed}/{number}")


def play(runner: Runner, given: argparse.Namespace) -> int:
    """Play episodes until there are so many windows, or all that were named."""
    total = Total()
    with (given.history or Path(os.devnull)).open("w") as history:
        for number, plan in _plans(given):
            before = os.times()
            result, wrong = runner.run(plan)
            cpu = sum(os.times()[:2]) - sum(before[:2])
            history.writelines(line + "\n" for line in result.lines())
            played = Played.of(number, result, wrong, cpu)
            total.add(played)
            if given.tell:
                print(json.dumps(vars(played)), flush=True)
            else:
                played.tell_wrong(given.seed)
            if (not given.plan and total.windows >= given.windows) or (given.until_wrong and wrong):
                break
    if not given.tell:
        total.tell()
    return 1 if total.wrong else 0


def shrink(runner: Runner, plan: Plan, into: Path) -> int:
    """Write the smallest plan that fails by the same rule."""
    rules = {rule_of(line) for line in runner.run(plan)[1]}
    if not rules:
        print("it doesn't fail")
        return 2

    def fails(smaller: Plan) -> bool:
        return bool(rules & {rule_of(line) for line in runner.run(smaller)[1]})

    smaller = shrunk(plan, fails)
    into.write_text(json.dumps(vars(smaller), sort_keys=True, indent=1) + "\n")
    for line in runner.run(smaller)[1]:
        print(line)
    print(f"{len(smaller.faults)} faults and {len(smaller.entries)} entries are left of {len(plan.faults)} and "
          f"{len(plan.entries)}: {into}. Put it into tests/simulation/kept: then it is a test")  # fmt: skip
    return 0
