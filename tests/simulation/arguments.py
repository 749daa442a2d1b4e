"""What ``python -m simulation`` is asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from .ablations import ABLATIONS


def read(arguments: list[str]) -> argparse.Namespace:
    """What the arguments say; ends with 2 where they can't be read."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first episode, to go on from there")
    parser.add_argument("--model", action="store_true", help="hold what the store answers against the model, too")

    one = parser.add_argument_group("in one process")
    one.add_argument("--episode", type=int, help="this one alone")
    one.add_argument("--plan", type=Path, nargs="+", help="the plans in these files, as episodes 0, 1, …")
    one.add_argument("--shrink", type=Path, help="make the plan that fails smaller, and write it there")
    one.add_argument("--history", type=Path, help="write what happened there")
    one.add_argument("--without", choices=sorted(ABLATIONS), help="leave out a rule of the protocol")
    one.add_argument("--lua", type=Path, help="take the store's scripts from this folder")
    one.add_argument("--until-wrong", action="store_true", help="end with the first episode that fails")
    one.add_argument("--step", type=int, default=1, help="how many episodes further the next one is")
    one.add_argument("--tell", action="store_true", help="print each episode as a line of JSON, for totals")

    many = parser.add_argument_group("in several processes")
    many.add_argument("--cores", type=int, help="so many processes play")
    many.add_argument("--ablations", action="store_true", help="leave out each rule in turn, and print the table")
    many.add_argument("--only", help="these rules alone, separated by commas")
    given = parser.parse_args(arguments)
    if given.cores or given.ablations:
        for action in one._group_actions:
            if getattr(given, action.dest) != action.default:
                parser.error(f"{action.option_strings[0]} goes with one process, not with --cores or --ablations")
    return given
