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
@click.option("--entries", is_flag=True, help="Ask whether windows are late, by their entries' deadlines.")
@click.option(
    "-S", "--scheduler", metavar="CLASS", help="With --entries: the scheduler whose schedule is read, as beat's -S."
)
@click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def ping(
    ctx: click.Context,
    *,
    beat: str | None,
    file: str | None,
    entries: bool,
    scheduler: str | None,
    json_: bool,
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
    if entries:
        _ask_of_entries(ctx, scheduler, json_=json_)
    elif file is None:
        _ask_redis(ctx, beat, json_=json_)
    elif beat is None:
        _check_file(ctx, file, json_=json_)
    else:
        raise click.UsageError("--file is one beat's own: give it without --beat")


def _check_file(ctx: click.Context, file: str, *, json_: bool) -> None:
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
    from celery_once_beat.status import BeatStatus

    from .context import open_project
    from .output import plain, print_json

    with open_project(ctx) as project:
        alive = [BeatStatus.of(seen) for seen in project.lookup.beats()[2]]
    asked = [each for each in alive if beat is None or is_of(each.beat, beat)]
    found = [each.beat for each in asked if not each.failing]
    failing = {each.beat: each.trouble for each in asked if each.failing}
    left_out = {name: why for each in asked for name, why in each.left_out.items()}
    if json_:
        print_json({"alive": bool(found), "beats": found, "failing": failing, "left_out": left_out})
    else:
        for name in found:
            click.echo(plain(name))
        for name, why in left_out.items():
            click.echo(f"entry {plain(name)} is left out: {plain(why)}", err=True)
        for name, trouble in failing.items():
            click.echo(f"{plain(name)}: {plain(trouble)}", err=True)
        if not asked:
            whose = "no beat lives" if beat is None else f"no beat {beat} lives"
            click.echo(f"{whose}; alive: {', '.join(plain(each.beat) for each in alive) or 'none'}", err=True)
    if not found:
        ctx.exit(1)


def _ask_of_entries(ctx: click.Context, scheduler: str | None, *, json_: bool) -> None:
    from celery_once_beat.status import as_json, deadline_of, late_last, late_now, line_up
    from celery_once_beat.windows import format_instant

    from .context import fail, open_project
    from .output import plain, print_json

    with open_project(ctx, scheduler) as project:
        overview = project.overview()
        disabled = project.schedule.disabled
        listed = [each for each in line_up(project.schedule, overview)[0] if each.name not in disabled]
    judged = [each for each in listed if deadline_of(each) is not None]
    if not judged:
        fail("no entry has a deadline: set once_beat_deadline, or an entry's options={'once': {'deadline': 900}}")
    late = []
    for each in judged:
        ended = late_last(each, overview.now)
        late += [*late_now(each, overview.now), *([ended] if ended else [])][:1]
    if json_:
        print_json({"entries": len(judged), "late": as_json(late)})
    elif late:
        lines = [f"{plain(each.entry)}: {format_instant(each.start)} is late: {plain(each.why)}" for each in late]
        click.echo("\n".join(lines))
    else:
        click.echo(f"entries with a deadline: {len(judged)}, late: none")
    if late:
        ctx.exit(1)
