"""``make simulate SEED=1 WINDOWS=10000``: so many windows, by seed; prints the digest of their histories last.

``python -m simulation --seed 1 --windows 10000``, with ``tests`` on the path.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from . import arguments
from .ablations import read_lua_from, take_out
from .standing_clock import StandingClock, library


def main() -> None:
    """Run in a process of its own that has such a clock."""
    given = arguments.read(sys.argv[1:])
    if "ONCE_SIMULATION" in os.environ:
        package = Path(importlib.util.find_spec("celery_once_beat").origin).parent
        if given.without:
            take_out(given.without, package)
        if given.lua:
            read_lua_from(given.lua, package)
        from .command import run

        directory = Path(os.environ["ONCE_SIMULATION"])
        try:
            sys.exit(run(directory, given))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    if given.cores or given.ablations:
        from .many import run as run_many

        sys.exit(run_many(given))
    directory = Path(tempfile.mkdtemp(prefix="once-simulation-", dir=os.environ.get("ONCE_SIMULATIONS")))
    clock = StandingClock(directory / "clock")
    clock.set(time.time_ns(), 10**9, 10**9)
    env = {**os.environ, **clock.env(library(directory)), "PYTHONHASHSEED": "0", "ONCE_SIMULATION": str(directory)}
    env.pop("USE_FAST_LOCALS", None)
    os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], env)


if __name__ == "__main__":
    main()
