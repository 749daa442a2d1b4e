"""``ping``, for probes. With ``--file`` it costs the start of ``celery`` and no more, so imports wait until needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from celery_once_beat.settings import BEAT_TTL, TICKS
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
@click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def ping(ctx: click.Context, beat: str | None, file: str | None, json_: bool) -> None:  # noqa: FBT001
    """Exit with 0 where a beat lives, else with 1.

    For probes. A beat lives if Redis has heard of it in the last 15 seconds. A beat's container asks for its own beat:
    --beat $HOSTNAME, or --file, which needs no app (-A) and costs less. Exits with 69 where Redis doesn't answer; with
    --file, where it doesn't answer the beat.
    """
    if file is None:
        _ask_redis(ctx, beat, json_=json_)
    elif beat is None:
        _look_at(ctx, file, json_=json_)
    else:
        raise click.UsageError("--file is one beat's own: give it without --beat")


def _look_at(ctx: click.Context, file: str, *, json_: bool) -> None:
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
        click.echo(f"Redis doesn't hear of a beat, by {printable(file)}{last}", err=True)
    if not alive:
        ctx.exit(os.EX_UNAVAILABLE if looks is not None and looks <= _HANGS else 1)


def _age(file: str) -> float | None:
    """Seconds since a beat wrote the file; None where there is none, or its time lies ahead: the clock went back."""
    try:
        age = time.time() - Path(file).stat().st_mtime
    except (OSError, ValueError):
        return None
    return round(age, 3) if age >= 0 else None


def _ask_redis(ctx: click.Context, beat: str | None, *, json_: bool) -> None:
    from celery_once_beat.identity import is_of

    from .context import open_project
    from .output import plain, print_json

    with open_project(ctx) as project:
        alive = project.store.beats()
    found = [name for name in alive if beat is None or is_of(name, beat)]
    if json_:
        print_json({"alive": bool(found), "beats": found})
    elif found:
        click.echo("\n".join(map(plain, found)))
    else:
        whose = "no beat lives" if beat is None else f"no beat {beat} lives"
        click.echo(f"{whose}; alive: {', '.join(map(plain, alive)) or 'none'}", err=True)
    if not found:
        ctx.exit(1)
