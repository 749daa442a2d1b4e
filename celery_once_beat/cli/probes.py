"""What ``ping`` asks of Redis."""

from __future__ import annotations

import sys

import click

from celery_once_beat.identity import is_of
from celery_once_beat.status import as_json, deadline_of, late_last, late_now, line_up
from celery_once_beat.windows import format_instant

from .context import Project, fail
from .output import in_zone, plain, print_json


def ask_redis(project: Project, beat: str | None, *, json_: bool) -> None:
    """Say which beats live; ``beat``: whether this one does."""
    alive = project.lookup.beats()[2]
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
        sys.exit(1)


def ask_of_entries(project: Project, *, json_: bool) -> None:
    """Say which entries are late."""
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
        click.echo(in_zone("\n".join(lines), project.zone))
    else:
        click.echo(f"entries with a deadline: {len(judged)}, late: none")
    if late:
        sys.exit(1)
