"""The commands that order something: ``run``, ``backfill``, ``pause``, ``resume``, ``abandon``; and ``orders``."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

from celery_once_beat.beat import BeatEntry, OnceScheduler
from celery_once_beat.client import Abandoned, Orders, Said
from celery_once_beat.errors import SettingError, StoreUnavailableError
from celery_once_beat.identity import order_name
from celery_once_beat.status import as_json
from celery_once_beat.store import Claimed, ClaimRequest, Published, Unknown
from celery_once_beat.windows import WindowKey, format_instant, task_id

from .context import Project, entry_argument, fail, json_option, open_project, scheduler_option, words_options
from .output import local, plain, print_json, print_table, printing_json

#: resume names so many of the newest windows that it passes over, since they may have run.
_MOST_LISTED = 1000
#: What the log says of an order: the column, and the field.
_LOG = {"ORDER": "what", "ENTRY": "entry", "WINDOWS": "about", "BY": "by", "NOTE": "note"}


# -- run and backfill -------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("--window", metavar="TIME", help="The window that starts then; default: the newest that has started.")
@words_options
@scheduler_option
@json_option
@click.pass_context
def run(ctx: click.Context, /, entry: str, window: str | None, json_: bool, **given: Any) -> None:  # noqa: FBT001
    """Run a window of ENTRY now, also one that ran before. Prints its start and its task's id.

    It is a backfill of one window: its outcome is counted apart. One that still owes its outcome is left alone.
    --json prints an object: entry, start, task_id (null if the window is left alone), and published, open, unpublished
    and unpublishable, of which one is 1.
    """
    with open_project(ctx, given["scheduler"]) as project:
        tracked = _tracked(project, entry)
        named = None if window is None else project.instant(window, "--window")
        with _wrong_use():
            start = Orders(project.store).start_to_run(tracked, named)
        publisher = _publisher(project)
        _note(project, "run", entry, given, [start])
        done, ids = _order(project, tracked, [start], publisher)
    if json_:
        print_json(
            {"entry": entry, "start": format_instant(start), "task_id": ids[0] if ids else None, **_numbers(done)}
        )
    elif ids:
        click.echo(f"{format_instant(start)} {ids[0]}")
    if done["open"]:
        click.echo(f"once: window {format_instant(start)} of {entry!r} still owes its outcome", err=True)
        ctx.exit(1)
    _end_unpublished(ctx, done)


@click.command()
@entry_argument()
@click.argument("since", metavar="FROM")
@click.argument("until", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Only show how many.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--again", is_flag=True, help="Also windows that are done.")
@words_options
@scheduler_option
@json_option
@click.pass_context
def backfill(ctx: click.Context, /, entry: str, since: str, until: str, json_: bool, **given: Any) -> None:  # noqa: FBT001
    """Run the windows of ENTRY from FROM up to TO.

    Both included; once more, or for the first time.

    What is open or done is skipped. Outcomes are counted apart. Nobody knows the outcome of windows that are older than
    the history (once_beat_history_size): they run again. The numbers are shown first, and asked about.
    --json asks on stderr, and prints an object: entry, to_run, skipped (how many are open, how many done), and how many
    became published, open, unpublished and unpublishable.
    """
    with open_project(ctx, given["scheduler"]) as project:
        tracked = _tracked(project, entry)
        first, last = project.instant(since, "FROM"), project.instant(until, "TO")
        with _wrong_use():
            starts, skipped = Orders(project.store).starts_between(tracked, first, last, again=given["again"])
        for state, number in skipped.items():
            click.echo(f"{number:>8} {state}, skipped", err=json_)
        click.echo(f"{len(starts):>8} to run", err=json_)
        done: Counter[str] = Counter()
        if starts and not given["dry_run"]:
            if not given["yes"]:
                click.confirm(f"Run {len(starts)} windows of {plain(entry)}?", abort=True, err=json_)
            publisher = _publisher(project)
            _note(project, "backfill", entry, given, starts)
            with click.progressbar(length=len(starts), label=plain(entry), file=sys.stderr if json_ else None) as bar:
                done, _ = _order(project, tracked, starts, publisher, bar.update)
    if json_:
        print_json({"entry": entry, "to_run": len(starts), "skipped": dict(skipped), **_numbers(done)})
    elif done:
        click.echo(f"{done['published']} published" + (f", {done['open']} open meanwhile" if done["open"] else ""))
    _end_unpublished(ctx, done)


def _note(
    project: Project, what: str, entry: str, given: Mapping[str, Any], starts: Sequence[datetime] = (), about: str = ""
) -> str:
    """Write down what is about to be ordered; returns who does it and why, as the store keeps that."""
    return Orders(project.store).note(what, entry, Said(given["by"], given["note"]), starts, about)


def _tracked(project: Project, name: str) -> BeatEntry:
    entry = project.entry(name)
    if not entry.tracked:
        fail(
            f"{name!r} is untracked: its task {entry.source.task!r} is no OnceTask, or this app doesn't know it, so "
            "that nobody could record the end of a window"
        )
    return entry


@contextmanager
def _wrong_use() -> Iterator[None]:
    """What can't be ordered, the user has named wrongly."""
    try:
        yield
    except SettingError as exc:
        fail(str(exc))


def _publisher(project: Project) -> OnceScheduler:
    """Return what publishes as a beat does. The broker is checked before a window is opened."""
    _ = project.schedule  # the app's modules are there
    publisher = OnceScheduler(project.app)
    try:
        ready = publisher.broker_ready()
    except Exception as exc:
        raise SettingError(f"broker_url: can't be used: {type(exc).__name__}: {exc}") from exc
    if not ready:
        raise StoreUnavailableError(f"the broker doesn't answer, nothing was ordered: {publisher.broker_trouble}")
    return publisher


def _order(
    project: Project,
    entry: BeatEntry,
    starts: Sequence[datetime],
    publisher: OnceScheduler,
    step: Callable[[int], None] = lambda _: None,
) -> tuple[Counter[str], list[str]]:
    """Open each window once more and publish it; what isn't published, a beat publishes.

    Returns how many became what, and the task ids of those that were opened.
    """
    done: Counter[str] = Counter()
    ids = []
    for start in starts:
        reply = project.store.backfill(WindowKey(entry.name, start), order_name())
        if isinstance(reply, Unknown):
            fail(f"the store doesn't know {entry.name!r}: start a beat first, which loads it")
        if isinstance(reply, Claimed):
            ids.append(task_id(project.settings.key_prefix, entry.name, start, reply.ordered))
            published = publisher.publish_by_order(entry, start, reply.turn, reply.ordered)
            words = {Published.UNSURE: "unpublished", Published.IMPOSSIBLE: "unpublishable"}
            done[words.get(published, "published")] += 1
        else:
            done["open"] += 1
        step(1)
    return done, ids


def _end_unpublished(ctx: click.Context, done: Counter[str]) -> None:
    """Say what wasn't published, and end with that."""
    if done["unpublishable"]:
        words = "can't be published: is there something in the entry's args that can't be serialized?"
        click.echo(f"once: {done['unpublishable']} {words}", err=True)
        ctx.exit(1)
    if done["unpublished"]:
        click.echo(f"once: {done['unpublished']} not published, the broker failed; a beat publishes them", err=True)
        ctx.exit(os.EX_UNAVAILABLE)


def _numbers(done: Counter[str]) -> dict[str, int]:
    return {became: done[became] for became in ("published", "open", "unpublished", "unpublishable")}


# -- pause and resume -------------------------------------------------------------------------------------------


@click.command()
@entry_argument(nargs=-1, required=True)
@words_options
@json_option
@click.pass_context
def pause(ctx: click.Context, /, entry: tuple[str, ...], json_: bool, **given: Any) -> None:  # noqa: FBT001
    """Claim no further windows of ENTRY…; what is open goes on.

    Holds until resume, over restarts and deploys.

    --json prints a list with an object for each ENTRY: entry, paused.
    """
    paused: list[dict[str, Any]] = []
    with open_project(ctx) as project, printing_json(paused, json_):
        for name in entry:
            words = _note(project, "pause", name, given)
            if not project.store.pause(name, words):
                fail(f"the store has no entry {name!r}; a beat that has it in its schedule loads it")
            paused.append({"entry": name, "paused": True})
            if not json_:
                click.echo(f"{plain(name)}: paused")


@click.command()
@entry_argument(nargs=-1, required=True)
@click.option("--from-now", is_flag=True, help="Record the windows of the pause as missed, instead of catching up.")
@words_options
@scheduler_option
@json_option
@click.pass_context
def resume(ctx: click.Context, /, entry: tuple[str, ...], json_: bool, **given: Any) -> None:  # noqa: FBT001
    """Claim the windows of ENTRY… again. Those of the pause are caught up on as after an outage (catch_up).

    --json prints a list with an object for each ENTRY: entry, paused, missed (how many windows were passed over).
    """
    resumed: list[dict[str, Any]] = []
    from_now = given["from_now"]
    with open_project(ctx, given["scheduler"]) as project, printing_json(resumed, json_):
        for name in entry:
            words = _note(project, "resume", name, given, about="from now on" if from_now else "")
            passed = _pass_over(project, name) if from_now else 0
            if not project.store.resume(name, words):
                fail(f"the store has no entry {name!r}")
            resumed.append({"entry": name, "paused": False, "missed": passed})
            if not json_:
                click.echo(f"{plain(name)}: resumed" + (f", {passed} windows missed" if from_now else ""))


def _pass_over(project: Project, name: str) -> int:
    """Count the windows up to now as missed; returns how many."""
    entry, account, now = project.entry(name), project.store.account(name), project.store.snapshot().now
    if account is None:
        fail(f"the store has no entry {name!r}")
    if not account.paused:
        fail(f"{name!r} isn't paused")
    starts = list(entry.starts(account.cursor, now))
    if not starts:
        return 0
    request = ClaimRequest(
        WindowKey(name, starts[-1]),
        account.cursor,
        entry.fingerprint,
        mode="pass",
        missed=starts[-_MOST_LISTED:],
        missed_count=len(starts),
    )
    (reply,) = project.store.claim_many(order_name(), [request])
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, Claimed):
        fail(f"{name!r} changed meanwhile ({type(reply).__name__.lower()}): ask again")
    return reply.missed  # not those that ran all the same, by order


# -- abandon ----------------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("--window", metavar="TIME", help="Only the window that starts then.")
@click.option("--running", is_flag=True, help="Also windows that run; their executions go on.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@words_options
@json_option
@click.pass_context
def abandon(ctx: click.Context, /, entry: str, window: str | None, json_: bool, **given: Any) -> None:  # noqa: FBT001
    """Give up the open windows of ENTRY.

    Their outcome is abandoned, and they aren't published again.

    What runs is left alone, unless --running. Nothing stops an execution: revoke its task for that. Its end isn't
    recorded any more. Exits with 1 where a window is left since it runs.
    --json asks on stderr, and prints an object: entry, abandoned and running (lists of starts).
    """
    with open_project(ctx) as project:
        starts = _open_starts(project, entry, window)
        if starts and not given["yes"]:
            click.confirm(f"Give up {len(starts)} open windows of {plain(entry)}?", abort=True, err=json_)
        gone, left = Abandoned([], [])
        if starts:
            _note(project, "abandon", entry, given, starts)
            gone, left = Orders(project.store).abandon(entry, starts, running=given["running"])
    if json_:
        print_json({"entry": entry, "abandoned": as_json(gone), "running": as_json(left)})
    else:
        click.echo(f"{plain(entry)}: {len(gone)} abandoned")
    if left:
        click.echo(f"once: {len(left)} left, since they run; see --running", err=True)
        ctx.exit(1)


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
@json_option
@click.pass_context
def orders(ctx: click.Context, json_: bool) -> None:  # noqa: FBT001
    """Show who ordered what of late, newest first.

    By a command, on the board, or in Django's admin.

    --json prints a list with an object for each order: at, what, entry, about, by, note.
    """
    with open_project(ctx) as project:
        found, zone = project.store.orders(), project.zone
    if json_:
        print_json([{"at": format_instant(each.at), **as_json(each.order)} for each in found])
    elif found:
        lines = [
            [
                local(each.at.replace(microsecond=0), zone),
                *(plain(getattr(each.order, field) or None) for field in _LOG.values()),
            ]
            for each in found
        ]
        print_table(["AT", *_LOG], lines)
    else:
        click.echo("Nobody has ordered anything in the last 90 days.")
