"""``schedules``: what people set at run time, shown and changed, and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any

import click

from celery_once_beat.client import Edit, Schedule, apply, compare, read_file, write_file
from celery_once_beat.errors import OnceError
from celery_once_beat.schedules import Change, Definition, cron, describe, every, read_schedule
from celery_once_beat.status import as_json
from celery_once_beat.wording import did_you_mean, read_span, shown

from .context import Project, fail, pass_project, words_options, yes_option
from .orders import pause, resume
from .output import local, plain, print_json, print_rows, printing_json

COLOURS = {"add": "green", "change": "yellow", "delete": "red"}
SIGNS = {"add": "+", "change": "~", "delete": "-"}


class _Commands(click.Group):
    """Ours, and ``import``, which is in contrib: it is loaded when it is asked for, since it needs celery-redbeat."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *(["import"] if find_spec("redbeat") else [])])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name != "import":
            return super().get_command(ctx, name)
        if not find_spec("redbeat"):
            fail("schedules import: celery-redbeat isn't installed here: pip install celery-redbeat")
        return import_module("celery_once_beat.contrib.redbeat").import_  # type: ignore[no-any-return]


@click.group(cls=_Commands)
def schedules() -> None:
    """Show and change the schedules that are set at run time.

    Beats need no restart.
    """


# -- options ----------------------------------------------------------------------------------------------------


_prefix_option = click.option("--prefix", metavar="TEXT", default="", help="Only schedules whose names begin so.")


def _json(_: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Read an option's JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        fail(f"{option.opts[0]}: found {text[:80]!r}, expected JSON: {exc}")


def _found(project: Project, name: str) -> Schedule:
    found = project.schedules.get(name)
    if found is None:
        hint = did_you_mean(name, (each.name for each in project.schedules.list(wrong=lambda _: None)), repr)
        fail(f"there is no schedule {name!r}{hint}")
    return found


def _coming(project: Project, found: Schedule) -> datetime | None:
    """Return when a schedule starts next; None also where it is paused."""
    return None if found.paused else next(iter(project.schedules.next(found.name)), None)


def _as_json(schedule: Schedule) -> dict[str, Any]:
    fields = ("paused", "version", "changed_at", "changed_by", "note")
    rest = {field: as_json(getattr(schedule, field)) for field in fields}
    return {"name": schedule.name, **schedule.as_json(), **rest}


def _whole(instant: datetime) -> datetime:
    """In whole seconds, for people."""
    return instant.replace(microsecond=0)


def name_unknown_tasks(project: Project, definitions: Iterable[Definition | None]) -> None:
    """Say which tasks this app doesn't know, those of on_failure too: they may be a worker's, or misspelt."""
    known = project.app.tasks
    names = {name for each in definitions if each is not None for name in (each.task, each.once.get("on_failure"))}
    for name in sorted(name for name in names if name is not None and name not in known):
        click.echo(f"once: this app doesn't know the task {shown(name)}{did_you_mean(name, known, repr)}", err=True)


def when_words(definition: Definition) -> str:
    """When it starts, in a few words, with the time zone by which that counts."""
    zone = definition.as_json()["schedule"].get("tz")
    words = describe(definition.schedule)
    return plain(words if zone is None or zone in words else f"{words} {zone}")


# -- what there is ----------------------------------------------------------------------------------------------


@schedules.command("list")
@_prefix_option
@pass_project(json=True)
def list_(project: Project, prefix: str, *, json_: bool) -> None:
    """List the schedules, by name. Ends with 65 where one of them can't be read; the others are listed."""
    found, wrong = _all(project, prefix)
    zone, now = project.zone, project.store.snapshot().now
    if json_:
        print_json([_as_json(each) for each in found])
    else:
        columns: dict[str, Callable[[Schedule], str]] = {
            "NAME": lambda each: plain(each.name),
            "TASK": lambda each: plain(each.task),
            "SCHEDULE": when_words,
            "STATE": lambda each: click.style("paused", fg="yellow") if each.paused else "on",
            "VERSION": lambda each: str(each.version),
            "CHANGED": lambda each: local(_whole(each.changed_at), zone, now),
            "BY": lambda each: plain(each.changed_by or None),
        }
        print_rows(found, columns, "No schedule is set.")
    _end_wrong(wrong)


def _all(project: Project, prefix: str) -> tuple[list[Schedule], list[OnceError]]:
    """Return the schedules, and why others can't be read."""
    wrong: list[OnceError] = []
    return list(project.schedules.list(prefix, wrong=wrong.append)), wrong


def _end_wrong(wrong: Sequence[OnceError]) -> None:
    """Name what can't be read, and end with that."""
    for error in wrong[:-1]:
        click.echo(f"once: {plain(str(error))}", err=True)
    if wrong:
        raise wrong[-1]


@schedules.command()
@click.argument("name")
@pass_project(json=True)
def show(project: Project, name: str, *, json_: bool) -> None:
    """Show the schedule NAME.

    All of its fields, its next start, and who changed it last.
    """
    found = _found(project, name)
    coming, zone = _coming(project, found), project.zone
    if json_:
        print_json({**_as_json(found), "next": as_json(coming)})
        return
    lines = {"task": found.task, "schedule": when_words(found)}
    for field in ("args", "kwargs", "options", "once"):
        value = found.as_json().get(field)
        if value:
            lines[field] = json.dumps(value, ensure_ascii=False, sort_keys=True)
    lines["next"] = "paused" if found.paused else local(coming, zone)
    lines["version"] = str(found.version)
    lines["changed"] = local(_whole(found.changed_at), zone) + (f" by {found.changed_by}" if found.changed_by else "")
    if found.note:
        lines["note"] = found.note
    for field, text in lines.items():
        click.echo(f"{field:<8}  {plain(text)}")


@schedules.command()
@click.argument("name")
@pass_project(json=True)
def changes(project: Project, name: str, *, json_: bool) -> None:
    """Show who changed the schedule NAME, when and why.

    Newest first; also of one that was deleted in the last 30 days.
    """
    found = project.schedules.changes(name)
    zone = project.zone
    if not found:
        fail(f"there is no schedule {name!r}, and none was deleted of late")
    if json_:
        print_json(as_json(found))
        return
    columns: dict[str, Callable[[Change], str]] = {
        "VERSION": lambda each: str(each.version),
        "AT": lambda each: local(_whole(each.at), zone),
        "WHAT": lambda each: each.what,
        "BY": lambda each: plain(each.by or None),
        "SCHEDULE": lambda each: "-" if each.definition is None else when_words(each.definition),
        "NOTE": lambda each: plain(each.note),
    }
    print_rows(found, columns)


# -- changes ----------------------------------------------------------------------------------------------------


@schedules.command("set")
@click.argument("name")
@click.argument("task")
@click.option("--every", metavar="SPAN", help="An interval: 90s, 5min, 1 day, 1 month.")
@click.option("--cron", metavar="FIELDS", help="A line of cron: '0 6 * * mon-fri', @daily.")
@click.option("--at", metavar="TIME", help="Once, at this time.")
@click.option("--schedule", "other", metavar="JSON", callback=_json, help="Any other type, as export writes it.")
@click.option("--tz", "timezone", metavar="ZONE", help="Time zone of a crontab, or of an interval of whole days.")
@click.option("--args", metavar="JSON", callback=_json, help="A list: the task's arguments.")
@click.option("--kwargs", metavar="JSON", callback=_json, help="An object: the task's keyword arguments.")
@click.option("--options", metavar="JSON", callback=_json, help="An object: options of apply_async, queue say.")
@click.option("--once", metavar="JSON", callback=_json, help="An object: the entry's once settings, catch_up say.")
@click.option("--paused/--running", default=None, help="Paused or not. Default: as it is; a new one runs.")
@click.option("--if-version", type=click.IntRange(0), help="Only if it has this version; 0: only if there is none.")
@words_options
@pass_project(json=True)
def set_(project: Project, name: str, task: str, *, json_: bool, **given: Any) -> None:
    """Set the schedule NAME, which sends TASK.

    A new one, or another in its place: all of it is replaced, also what isn't given. It counts from now.
    """
    when = _read_when(project, {key: given.pop(key) for key in ("every", "cron", "at", "other")})
    found = project.schedules.set(name, task=task, schedule=when, **given)
    name_unknown_tasks(project, [found])
    coming = _coming(project, found)
    if json_:
        print_json({**_as_json(found), "next": as_json(coming)})
    else:
        coming_text = "paused" if found.paused else f"next {local(coming, project.zone)}"
        click.echo(f"{plain(name)}: version {found.version}, {coming_text}")


def _read_when(project: Project, given: dict[str, Any]) -> Any:
    """Read the one option of ``given`` that says when."""
    said = {key: text for key, text in given.items() if text is not None}
    if len(said) != 1:
        fail("say when: one of --every, --cron, --at and --schedule")
    ((key, text),) = said.items()
    readers: dict[str, Callable[[Any], Any]] = {
        "every": lambda text: read_span(text) or every(text),
        "cron": cron,
        "at": lambda text: project.instant(text, "--at"),
        "other": read_schedule,
    }
    try:
        return readers[key](text)
    except ValueError as exc:
        fail(f"--schedule: {exc}" if key == "other" else f"--{exc}")


@schedules.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--if-version", type=click.IntRange(1), help="Only if it has this version.")
@words_options
@yes_option
@pass_project(json=True)
def delete(project: Project, names: tuple[str, ...], *, json_: bool, yes: bool, **given: Any) -> None:
    """Delete the schedules NAME….

    Open windows continue to their outcome; unclaimed ones don't run.

    --json asks on stderr, and prints a list with an object for each NAME: name, deleted.
    """
    if not yes:
        click.confirm(f"Delete {', '.join(map(plain, names))}?", abort=True, err=json_)
    with printing_json(json_) as done:
        for name in names:
            deleted = project.schedules.delete(name, **given)
            done({"name": name, "deleted": deleted}, f"{plain(name)}: {'deleted' if deleted else 'there is none'}")


for _command in (pause, resume):  # they know schedules that are set at run time too
    schedules.add_command(_command)


# -- a file -----------------------------------------------------------------------------------------------------


@schedules.command()
@_prefix_option
@pass_project()
def export(project: Project, prefix: str) -> None:
    """Print the schedules as JSON, for a file that apply reads.

    Always in the same order, one field a line.
    Ends with 65 where one of them can't be read; the others are printed.
    """
    found, wrong = _all(project, prefix)
    click.echo(write_file(found), nl=False)
    _end_wrong(wrong)


@schedules.command("apply")
@click.option("-f", "--file", "source", type=click.File(encoding="utf-8"), required=True, help="- is stdin.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--prune", metavar="PREFIX", default="", help="Delete those that begin so and aren't in the file.")
@words_options
@yes_option
@pass_project(json=True)
def apply_(project: Project, source: Any, *, json_: bool, **given: Any) -> None:
    """Set the schedules of a file, all or none. What the file doesn't have is kept.

    The changes are shown first, and asked about. A schedule that somebody else changes meanwhile stops it with 1, and
    what was set before is taken back; what can't be taken back is named.

    --json asks on stderr, and prints an object: applied, and changes, each with name, what, before and after.
    """
    edits = compare(project.schedules, read_file(_read(source)), given["prune"])
    if not json_:
        _print_edits(edits)
    name_unknown_tasks(project, (edit.after.definition for edit in edits if edit.after is not None))
    applied = bool(edits) and not given["dry_run"]
    if applied:
        if not given["yes"]:
            click.confirm(f"Apply {len(edits)} changes?", abort=True, err=json_)
        apply(project.schedules, edits, given["by"], given["note"])
    if json_:
        print_json({"applied": applied, "changes": [_edit_as_json(edit) for edit in edits]})
    elif applied:
        click.echo(f"{len(edits)} applied.")


def _read(source: Any) -> str:
    try:
        text: str = source.read()
    except (OSError, ValueError) as exc:
        fail(f"--file: can't be read: {exc}")
    return text


def _edit_as_json(edit: Edit) -> dict[str, Any]:
    return {
        "name": edit.name,
        "what": edit.what,
        "before": as_json(edit.before and edit.before.as_wanted()),
        "after": as_json(edit.after),
    }


def _print_edits(edits: Sequence[Edit]) -> None:
    if not edits:
        click.echo("Nothing differs.")
    for edit in edits:
        known = edit.before if edit.after is None else edit.after.definition
        assert known is not None
        line = f"{SIGNS[edit.what]} {plain(edit.name)}: {plain(known.task)}, {when_words(known)}"
        click.secho(line, fg=COLOURS[edit.what])
        if edit.what == "change":
            for field, before, after in _fields_that_differ(edit):
                click.echo(f"    {field}: {before} → {after}")


def _fields_that_differ(edit: Edit) -> Iterator[tuple[str, str, str]]:
    found = _edit_as_json(edit)
    before, after = found["before"], found["after"]
    for field in dict.fromkeys(chain(sorted(before), sorted(after))):
        if field in ("paused", "metadata") and field not in after:
            continue
        values = [json.dumps(each.get(field), ensure_ascii=False, sort_keys=True) for each in (before, after)]
        if values[0] != values[1]:
            yield (field, *(plain("-" if value == "null" else value) for value in values))
