"""``ping``, for probes. With ``--file`` it costs the start of ``celery`` and no more, so imports wait until needed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from celery_once_beat.features.heartbeat_file import TICKS
from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.wording import printable, span

#: A beat whose last look is older hangs: the longest look, with a Redis that doesn't answer, takes a third of it.
_HANGS = 60.0


@click.command()
@click.option("--beat", metavar="ID", help="This beat: its ID, or the host name that its ID begins with.")
@click.option(
    "--file",
    metavar="PATH",
    help="Look at the file that this beat writes (once_beat_heartbeat_file), instead of asking Redis.",
)
@click.option("--entries", is_flag=True, help="Ask whether windows are late, by their entries' deadlines.")
@click.option(
    "-S", "--scheduler", metavar="CLASS", help="With --entries: the scheduler whose schedule is read, as beat's -S."
)
@click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def ping(
    ctx: click.Context, *, beat: str | None, file: str | None, entries: bool, scheduler: str | None, json_: bool
) -> None:
    """Exit with 0 where a beat lives, else with 1.

    For probes. A beat lives if Redis has heard of it in the last 15 seconds. One whose ticks fail counts as none. A
    beat's container asks for its own beat:
    --beat $HOSTNAME, or --file, which needs no app (-A) and costs less. Exits with 69 where Redis doesn't answer; with
    --file, where it doesn't answer the beat.

    With --entries it asks of each entry that has a deadline whether its windows are done in time, also where no beat
    lives. It prints a line for each entry that is late, and then exits with 1; with 2 if no entry has a deadline.
    Entries that are paused, or disabled in their database, aren't late for what nobody claims.
    """
    if entries and (file is not None or beat is not None):
        raise click.UsageError("--entries asks of no beat: give it without --beat and --file")
    if scheduler is not None and not entries:
        raise click.UsageError("--scheduler is for --entries")
    if file is not None and beat is not None:
        raise click.UsageError("--file is one beat's own: give it without --beat")
    if file is not None:
        _check_file(file, json_=json_)
        return
    from .context import open_project
    from .probes import ask_of_entries, ask_redis

    project = open_project(ctx, scheduler)
    if entries:
        ask_of_entries(project, json_=json_)
    else:
        ask_redis(project, beat, json_=json_)


def _check_file(file: str, *, json_: bool) -> None:
    from .output import print_json

    heard = _age(file)
    alive = heard is not None and heard <= BEAT_TTL
    looks = _age(file + TICKS)
    if json_:
        print_json({"alive": alive, "heard": heard, "looks": looks})
    elif alive:
        assert heard is not None
        click.echo(f"Redis has heard of this beat {span(heard)} ago")
    else:
        last = "" if heard is None else f", the last time {span(heard)} ago"
        click.echo(f"Redis doesn't hear of a beat, or its ticks fail, by {printable(file)}{last}", err=True)
    if not alive:
        sys.exit(os.EX_UNAVAILABLE if looks is not None and looks <= _HANGS else 1)


def _age(file: str) -> float | None:
    """Seconds since a beat wrote the file; None where there is none, or its time lies ahead: the clock went back."""
    try:
        age = time.time() - Path(file).stat().st_mtime
    except (OSError, ValueError):
        return None
    return round(age, 3) if age >= 0 else None
