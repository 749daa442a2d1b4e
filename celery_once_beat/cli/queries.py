"""The commands that look: ``status``, ``watch``, ``next``, ``history``. None of them writes anything."""

from __future__ import annotations

import contextlib
import heapq
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import click

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import ScheduleError, StoreDataError, StoreUnavailableError
from celery_once_beat.features.admission.beat import may_wait
from celery_once_beat.lookup import WindowSeen
from celery_once_beat.status import BeatStatus, EntryStatus, Report, WindowStatus, as_json, coming_starts, make_report
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import some, span

from .context import Project, entry_argument, fail, json_option, pass_project
from .output import local, painted, plain, print_json, print_table, seconds

#: What status says of an entry, before what needs attention.
_ENTRY = ("ENTRY", "LAST WINDOW", "OUTCOME", "RAN ON", "LATE", "NEXT", "OPEN", "RUNNING", "OVERDUE", "REFUSED")
#: Most workers that status names, and queues of each.
_MOST_WORKERS, _MOST_QUEUES = 20, 5
#: Most paused entries that it names.
_MOST_PAUSED = 10
#: Most windows of an entry that are looked at for why they are left out.
_MOST_LEFT_OUT = 10_000


# -- status -----------------------------------------------------------------------------------------------------


@click.command()
@pass_project(reads_schedule=True)
@json_option
def status(project: Project, *, json_: bool) -> None:
    """Show which beats live, and how each entry stands.

    Entries that need attention come first.

    Exits with 1 where no beat lives, the ticks of one fail, or entries stand still, since the Redis server's clock went
    back.
    """
    report = _snapshot(project)
    if json_:
        print_json(as_json(report))
    else:
        _print_status(report, project.zone)
    if report.behind or not report.beats or any(beat.failing for beat in report.beats):
        sys.exit(1)


@click.command()
@pass_project(reads_schedule=True)
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds.")
def watch(project: Project, interval: float) -> None:
    """Show the status again and again, until Ctrl-C. It goes on when Redis comes back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            project.read_again()
            try:
                report = _snapshot(project)
            except StoreUnavailableError as exc:
                click.clear()
                click.secho(f"once: {plain(str(exc))}", fg="red")
            else:
                click.clear()
                _print_status(report, project.zone)
            time.sleep(interval)


def _snapshot(project: Project) -> Report:
    return make_report(project.overview(), project.schedule)


def _print_status(report: Report, zone: tzinfo) -> None:
    click.echo(f"{local(report.now, zone)[:19]} {zone}, Redis answers in {report.latency * 1000:.1f} ms")
    if report.behind:
        click.secho(f"The server's clock is {span(report.behind)} behind the latest window: it went back.", fg="red")
    click.echo()
    _print_beats(report.beats)
    _print_workers(report)
    for trouble in report.unreadable:
        click.secho(f"Unreadable: {plain(trouble)}", fg="yellow")
    if report.code:
        click.secho(plain(f"{report.code}."), fg="yellow")
    click.echo()
    if not report.entries:
        click.echo("The schedule has no entries.")
        return
    print_table([*_ENTRY, "ATTENTION"], [_status_line(entry, zone, report.now) for entry in report.entries])
    paused = [plain(shlex.quote(entry.entry)) for entry in report.entries if entry.paused]
    if paused:
        click.echo(f"To go on with what is paused: celery once resume {' '.join(paused[:_MOST_PAUSED])}")


def _print_beats(beats: Sequence[BeatStatus]) -> None:
    if not beats:
        click.secho("No beat lives: start one with -S once.", fg="red")
        return
    print_table(
        ["BEAT", "HEARD", *(name.upper() for name in beats[0].says)],
        [[plain(beat.beat), f"{span(beat.heard)} ago", *map(plain, beat.says.values())] for beat in beats],
    )
    for beat in beats:
        if beat.trouble:
            click.secho(f"{plain(beat.beat)}: {plain(beat.trouble)}", fg="red")
    apps = sorted({beat.app for beat in beats if beat.app is not None})
    if len(apps) > 1:
        click.secho(f"Beats of {len(apps)} apps use the same keys: {plain(', '.join(apps))}; see doctor.", fg="yellow")
    if len(beats) == 1:
        click.secho("One beat lives: if it dies, nothing is published until another one starts.", fg="yellow")


def _print_workers(report: Report) -> None:
    workers = report.workers
    if workers:
        click.echo()
        lines = [
            [
                plain(each.worker),
                "-" if each.heard is None else f"{span(each.heard)} ago",
                str(each.running),
                plain(some(each.queues, _MOST_QUEUES)) or "-",
            ]
            for each in workers[:_MOST_WORKERS]
        ]
        print_table(["WORKER", "HEARD", "RUNNING", "QUEUES"], lines)
    if len(workers) > _MOST_WORKERS:
        click.echo(f"… and {len(workers) - _MOST_WORKERS} more workers.")


def _status_line(entry: EntryStatus, zone: tzinfo, now: datetime) -> list[str]:
    last = entry.last
    attention = "; ".join(entry.attention)
    return [
        click.style(plain(entry.entry), bold=True) if attention else plain(entry.entry),
        local(last.start if last else None, zone, now),
        painted(last.state) if last else "-",
        plain(last.worker or None) if last else "-",
        seconds(last.late if last else None),
        "disabled" if entry.kind == "disabled" else local(entry.next, zone, now),
        str(entry.open) + (f", {_waiting_words(entry, zone, now)}" if entry.buffered else ""),
        str(entry.running),
        click.style(str(entry.overdue), fg="red") if entry.overdue else "0",
        str(entry.refused),
        click.style(plain(attention), fg="yellow") if attention else "",
    ]


def _waiting_words(entry: EntryStatus, zone: tzinfo, now: datetime) -> str:
    """Say how many windows wait, and for what the first of them does: ``2 wait for 02:00:00's``."""
    first = entry.first_waiting
    reason = "" if first is None else _waits_for(first, zone, now)
    return f"{entry.buffered} {'waits' if entry.buffered == 1 else 'wait'}" + (f" {reason}" if reason else "")


# -- next -------------------------------------------------------------------------------------------------------


@click.command("next")
@entry_argument(required=False)
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@click.option("--from", "since", metavar="TIME", default="now", help="After this time; default: now.")
@pass_project(reads_schedule=True, needs_store=False)
@json_option
def next(  # noqa: A001  # the command's name
    project: Project, entry: str | None, number: int, since: str, *, json_: bool
) -> None:
    """Show the coming windows of ENTRY, or of all.

    In local time and UTC. Asks neither beats nor the broker.

    Windows that are due and wait come first, with what they wait for. Days on which the clocks change are marked.
    What a schedule leaves out before the last of them is shown, with why.
    """
    after = project.instant(since, "--from")
    if entry is None:
        project.add_defined(quiet=json_)
    entries = list(project.schedule.entries) if entry is None else [project.entry(entry)]
    for name, why in project.schedule.entries.wrong.items() if entry is None else ():
        click.echo(f"once: entry {plain(str(name))} is left out: {plain(why)}", err=True)
    windows = list(islice(heapq.merge(*(_coming(each, after) for each in entries)), number))
    zones = {each.name: _zone(each, project) for each in entries}
    if not project.settings.redis_url:
        click.echo("once: no Redis is set (once_beat_redis_url): the schedule says this, no store was asked", err=True)
    if json_:
        print_json([_next_json(start, name, start.astimezone(zones[name])) for start, name in windows])
        return
    changes = ((start, name, _clocks_change(start.astimezone(zones[name]))) for start, name in windows)
    lines = [(start, name, "the clocks change" if they_do else "") for start, name, they_do in changes]
    for name, waits in _waiting(project, entries).items():
        lines += _joined(name, ((each.start, f"waits {_waits_for(each, zones[name])}") for each in waits))
    if windows:
        lines += _left_out(entries, after, windows[-1][0])
    if not lines:
        click.echo("No window will start.")
        return
    print_table(
        ["ENTRY", "LOCAL TIME", "UTC", ""],
        [_next_line(start, name, start.astimezone(zones[name]), note) for start, name, note in sorted(lines)],
    )


def _next_json(start: datetime, name: str, there: datetime) -> dict[str, Any]:
    return {
        "entry": name,
        "start": format_instant(start),
        "local": there.isoformat(),
        "zone": str(there.tzinfo),
        "clocks_change": _clocks_change(there),
    }


def _next_line(start: datetime, name: str, there: datetime, note: str) -> list[str]:
    utc = format_instant(start)[11:19] + "Z" if start.date() == there.date() else format_instant(start)
    return [plain(name), there.isoformat(" "), utc, click.style(plain(note), fg="yellow") if note else ""]


def _left_out(entries: Sequence[BeatEntry], after: datetime, until: datetime) -> Iterator[tuple[datetime, str, str]]:
    """Yield what schedules leave out: start, entry and why."""
    for entry in entries:
        starts = islice(entry.timetable.left_out(after, until), _MOST_LEFT_OUT)
        yield from _joined(entry.name, ((start, f"excluded: {why}") for start, why in starts), _MOST_LEFT_OUT)


def _joined(name: str, starts: Iterable[tuple[datetime, str]], most: int = 0) -> Iterator[tuple[datetime, str, str]]:
    """Yield start, entry and why of an entry's windows. Several in a row for the same reason are one line.

    Of ``most`` there may be more.
    """
    for why, group in groupby(starts, key=itemgetter(1)):
        (first, _), *more = group
        number = f"{1 + len(more)} windows" + (" or more" if 1 + len(more) == most else "")
        yield first, name, why + (f" ({number})" if more else "")


def _coming(entry: BeatEntry, after: datetime) -> Iterator[tuple[datetime, str]]:
    try:
        for start in coming_starts(entry, after):
            yield start, entry.name
    except ScheduleError as exc:
        click.echo(f"once: entry {entry.name!r}: {exc}", err=True)


def _zone(entry: BeatEntry, project: Project) -> tzinfo:
    zone = getattr(entry.when, "tz", None)
    return zone if isinstance(zone, tzinfo) else project.zone


def _clocks_change(there: datetime) -> bool:
    """Whether its zone's clocks change on its local day."""
    midnight = datetime(there.year, there.month, there.day, tzinfo=there.tzinfo)
    return midnight.utcoffset() != (midnight + timedelta(days=1)).utcoffset()  # both are wall clock's: no 24 hours


def _waits_for(window: WindowStatus | WindowSeen, zone: tzinfo, now: datetime | None = None) -> str:
    """Say for what a window waits: ``for 02:00:00's``; '' for nothing, or where it is next."""
    if window.waits_for is not None:
        return f"for {local(window.waits_for, zone, now or window.start)}'s"
    return f"for a slot of {plain(window.limit)}" if window.limit else ""


def _waiting(project: Project, entries: Sequence[BeatEntry]) -> dict[str, list[WindowSeen]]:
    """Return by entry the windows that wait for others, or for a slot of a limit; the oldest come first.

    Nothing where no store can be asked.
    """
    tasks = project.app.tasks
    names = [each.name for each in entries if may_wait(each, project.settings, tasks.get(each.source.task))]
    if not names or not project.settings.redis_url:
        return {}
    try:
        seen = project.lookup.overview(names).entries
    except StoreUnavailableError:
        return {}
    return {
        name: [each for each in reversed(entry.windows) if each.waits_for or each.limit] for name, entry in seen.items()
    }


# -- history ----------------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@json_option
@pass_project()
def history(project: Project, entry: str, number: int, *, json_: bool) -> None:
    """Show the last windows of ENTRY, newest first.

    Which beat claimed each, which worker ran it, how late, and for how long.

    BEAT is the one that claimed the window, or took it over last when it was overdue. It is the store's own record,
    also of an entry that has left the schedule.
    """
    seen = project.lookup.entry(entry, number)
    if seen.trouble:
        raise StoreDataError(seen.trouble)
    if seen.account is None and not seen.windows:
        fail(f"the store has never heard of an entry {entry!r}, or has forgotten it")
    windows = [WindowStatus.of(window) for window in seen.windows[:number]]
    zone = project.zone
    if json_:
        print_json({"entry": entry, "windows": as_json(windows)})
        return
    if not windows:
        click.echo(f"{plain(entry)}: no window has an outcome yet.")
        return
    print_table(
        ["WINDOW", "OUTCOME", "BEAT", "RAN ON", "TRIES", "LATE", "TOOK", "REFUSED", "FAILURE"],
        [
            [
                local(window.start, zone),
                painted(window.state)
                + (f", {window.missed} windows" if window.missed > 1 else "")
                + (f", waits {reason}" if (reason := _waits_for(window, zone)) else "")
                + (f", {span(past)} past its deadline" if (past := window.past_deadline()) is not None else ""),
                plain(window.beat),
                plain(window.worker or None),
                str(window.attempts),
                seconds(window.late),
                seconds(window.took),
                str(window.refused),
                plain(window.failure),
            ]
            for window in windows
        ],
    )
