"""The commands that order something, like ``run``, ``pause`` and ``abandon``; their log, ``orders``; and ``prune``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import click

from celery_once_beat.beat import BeatEntry
from celery_once_beat.client import Abandoned, OrderedBy, OrderedWindow, Orders
from celery_once_beat.errors import SettingError
from celery_once_beat.features.effects.prune import read_age
from celery_once_beat.status import as_json
from celery_once_beat.windows import format_instant

from .context import Project, entry_argument, fail, needs_extra, pass_project, words_options, yes_option
from .output import in_zone, local, plain, print_json, print_table, printing_json

#: What the log says of an order: the column, and the field.
_LOG = {"ORDER": "what", "ENTRY": "entry", "WINDOWS": "about", "BY": "by", "NOTE": "note"}


# -- run and backfill -------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("--window", metavar="TIME", help="The window that starts then; default: the newest that has started.")
@words_options
@pass_project(reads_schedule=True, json=True)
def run(project: Project, entry: str, window: str | None, by: str, note: str, *, json_: bool) -> None:
    """Run a window of ENTRY now, also one that ran before. Prints its start and its task's id.

    A beat publishes it within one look. It is a backfill of one window: its outcome is counted apart. One that still
    owes its outcome is left alone.
    --json prints an object: entry, start, task_id (null if the window is left alone), and ordered and open, of which
    one is 1.
    """
    orders, tracked = Orders(project.store), _tracked(project, entry)
    start = orders.start_to_run(tracked, None if window is None else project.instant(window, "--window"))
    (ordered,) = done = orders.run(entry, [start], OrderedBy(by, note), waits=tracked.stored)
    at = format_instant(start)
    if json_:
        print_json({"entry": entry, "start": at, "task_id": ordered.task_id, **_numbers(done)})
    elif ordered.task_id is not None:
        click.echo(f"{at} {ordered.task_id}")
    if ordered.task_id is None:
        click.echo(f"once: window {at} of {entry!r} still owes its outcome", err=True)
        sys.exit(1)
    _name_missing_beat(project)


@click.command()
@entry_argument()
@click.argument("since", metavar="FROM")
@click.argument("until", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Only show how many.")
@yes_option
@click.option("--again", is_flag=True, help="Also windows that are done.")
@words_options
@pass_project(reads_schedule=True, json=True)
def backfill(project: Project, entry: str, since: str, until: str, *, json_: bool, **given: Any) -> None:
    """Run the windows of ENTRY from FROM up to TO.

    Both included; once more, or for the first time.

    What is open or done is skipped. Outcomes are counted apart. Nobody knows the outcome of windows that are older than
    the history (once_beat_history_size): they run again. The numbers are shown first, and asked about.
    --json asks on stderr, and prints an object: entry, to_run, skipped (how many are open, how many done), and how many
    became ordered, and open meanwhile.
    """
    orders, tracked = Orders(project.store), _tracked(project, entry)
    first, last = project.instant(since, "FROM"), project.instant(until, "TO")
    starts, skipped = orders.starts_between(tracked, first, last, again=given["again"])
    for state, number in skipped.items():
        click.echo(f"{number:>8} {state}, skipped", err=json_)
    click.echo(f"{len(starts):>8} to run", err=json_)
    done: Sequence[OrderedWindow] = ()
    if starts and not given["dry_run"]:
        if not given["yes"]:
            click.confirm(f"Run {len(starts)} windows of {plain(entry)}?", abort=True, err=json_)
        by = OrderedBy(given["by"], given["note"])
        done = orders.run(entry, starts, by, "backfill", waits=tracked.stored)
    numbers = _numbers(done)
    if json_:
        print_json({"entry": entry, "to_run": len(starts), "skipped": dict(skipped), **numbers})
    elif done:
        click.echo(f"{numbers['ordered']} ordered" + (f", {numbers['open']} open meanwhile" if numbers["open"] else ""))
    if done:
        _name_missing_beat(project)


def _tracked(project: Project, name: str) -> BeatEntry:
    entry = project.entry(name)
    if not entry.tracked:
        fail(
            f"{name!r} is untracked: its task {entry.source.task!r} is no OnceTask, or this app doesn't know it, so "
            "that nobody could record the end of a window"
        )
    return entry


def _numbers(done: Sequence[OrderedWindow]) -> dict[str, int]:
    still_open = sum(each.task_id is None for each in done)
    return {"ordered": len(done) - still_open, "open": still_open}


def _name_missing_beat(project: Project) -> None:
    if not project.store.snapshot().beats:
        click.echo("once: no beat lives; the next one to start publishes the ordered windows", err=True)


# -- pause and resume -------------------------------------------------------------------------------------------


@click.command()
@entry_argument(nargs=-1, required=True)
@words_options
@pass_project(json=True)
def pause(project: Project, entry: tuple[str, ...], by: str, note: str, *, json_: bool) -> None:
    """Claim no further windows of ENTRY…; open windows continue.

    Holds until resume, over restarts and deploys.

    --json prints a list with an object for each ENTRY: entry, paused.
    """
    with printing_json(json_) as paused:
        for name in entry:
            Orders(project.store).pause(name, OrderedBy(by, note))
            paused({"entry": name, "paused": True}, f"{plain(name)}: paused")


@click.command()
@entry_argument(nargs=-1, required=True)
@click.option("--from-now", is_flag=True, help="Record the windows of the pause as cancelled, instead of catching up.")
@words_options
@pass_project(reads_schedule=True, json=True)
def resume(project: Project, entry: tuple[str, ...], by: str, note: str, *, from_now: bool, json_: bool) -> None:
    """Claim the windows of ENTRY… again. Those of the pause are caught up on as after an outage (catch_up).

    --json prints a list with an object for each ENTRY: entry, paused, cancelled (how many windows).
    """
    with printing_json(json_) as resumed:
        for name in entry:
            gone = Orders(project.store).resume(name, OrderedBy(by, note), project.entry(name) if from_now else None)
            resumed(
                {"entry": name, "paused": False, "cancelled": gone},
                f"{plain(name)}: resumed" + (f", {gone} windows cancelled" if from_now else ""),
            )


# -- republish --------------------------------------------------------------------------------------------------


@click.command()
@entry_argument(nargs=-1)
@click.option("--queue", metavar="NAME", help="All windows in this queue.")
@words_options
@pass_project(reads_schedule=True, json=True)
def republish(project: Project, entry: tuple[str, ...], queue: str | None, by: str, note: str, *, json_: bool) -> None:
    """Publish windows of ENTRY… again whose messages are lost.

    For a queue that was purged or deleted: those that no worker has begun since their publish. They come again by
    themselves, but later. A beat publishes them within one look. If a message wasn't lost, workers refuse the copy.

    --json prints a list with an object for each entry: entry, republished (a list of starts).
    """
    if bool(entry) == bool(queue):
        raise click.UsageError("name entries, or a --queue")
    seen = project.overview().entries
    with printing_json(json_) as done:
        for name in entry or seen:
            account = seen[name].account if name in seen else None
            if account is None and entry:
                fail(f"the store has no entry {name!r}")
            open_ = account.open if account else {}
            starts = sorted(start for start, window in open_.items() if not queue or window.queue == queue)
            if starts or entry:
                again = Orders(project.store).republish(name, starts, OrderedBy(by, note))
                done({"entry": name, "republished": as_json(again)}, f"{plain(name)}: {len(again)} published again")


# -- abandon ----------------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("--window", metavar="TIME", help="Only the window that starts then.")
@click.option("--running", is_flag=True, help="Also windows that run; their bodies continue.")
@yes_option
@words_options
@pass_project(json=True)
def abandon(project: Project, entry: str, window: str | None, by: str, note: str, **given: Any) -> None:
    """Give up the open windows of ENTRY.

    Their outcome is cancelled, and they aren't published again.

    What runs is left alone, unless --running. Nothing stops an execution: revoke its task for that. Its end isn't
    recorded any more. Exits with 1 where a window is left since it runs.
    --json asks on stderr, and prints an object: entry, cancelled and running (lists of starts).
    """
    starts = _open_starts(project, entry, window)
    if starts and not given["yes"]:
        click.confirm(f"Give up {len(starts)} open windows of {plain(entry)}?", abort=True, err=given["json_"])
    gone, left = Abandoned([], [])
    if starts:
        gone, left = Orders(project.store).abandon(entry, starts, OrderedBy(by, note), running=given["running"])
    if given["json_"]:
        print_json({"entry": entry, "cancelled": as_json(gone), "running": as_json(left)})
    else:
        click.echo(f"{plain(entry)}: {len(gone)} cancelled")
    if left:
        click.echo(f"once: {len(left)} left, since they run; see --running", err=True)
        sys.exit(1)


def _open_starts(project: Project, name: str, window: str | None) -> list[datetime]:
    account = project.store.account(name)
    if account is None:
        fail(f"the store has no entry {name!r}")
    if window is None:
        return sorted(account.open)
    start = project.instant(window, "--window")
    if start not in account.open:
        fail(f"--window: no window of {name!r} that starts then is open; see: once history {name}")
    return [start]


# -- the log ----------------------------------------------------------------------------------------------------


@click.command()
@pass_project(json=True)
def orders(project: Project, *, json_: bool) -> None:
    """Show who ordered what of late, newest first.

    By a command, on the board, or in Django's admin.

    --json prints a list with an object for each order: at, what, entry, about, by, note.
    """
    from celery_once_beat.features.orders.store import read_orders

    found, zone = read_orders(project.store), project.zone
    if json_:
        print_json([{"at": format_instant(each.at), **as_json(each.order)} for each in found])
        return
    lines = []
    for each in found:
        words = (in_zone(getattr(each.order, field), zone) for field in _LOG.values())
        lines.append([local(each.at.replace(microsecond=0), zone), *(plain(text or None) for text in words)])
    print_table(["AT", *_LOG], lines, nothing="Nobody has ordered anything in the last 90 days.")


# -- rows of effects --------------------------------------------------------------------------------------------


@click.command()
@click.option("--older-than", metavar="AGE", required=True, help="Like 90d; a week is 1w.")
@pass_project(needs_store=False)
def prune(project: Project, older_than: str) -> None:
    """Delete rows of recorded windows that are older than AGE. Prints how many.

    In batches, each committed by itself. The database is that of once_beat_effects_url, the schema of the table that of
    once_beat_effects_schema. Django projects have a command of their own: manage.py once_prune.
    """
    url = project.settings.effects_url
    if url is None:
        raise SettingError(
            "once_beat_effects_url: not set, expected SQLAlchemy's URL of the database that has the rows; "
            "in Django run 'manage.py once_prune'"
        )
    try:
        age = read_age(older_than, project.app, partial(click.echo, err=True))
    except SettingError as exc:
        fail(str(exc))
    with needs_extra("prune", "sqlalchemy"):
        from celery_once_beat.features.effects.in_sqlalchemy import prune_at
    click.echo(f"deleted: {prune_at(url, age, project.settings.effects_schema)}")
