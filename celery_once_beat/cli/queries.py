"""The commands that look: ``status``, ``watch``, ``next``, ``history``. None of them writes anything."""

from __future__ import annotations

import contextlib
import heapq
import re
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import click

from celery_once_beat.beat import BeatEntry
from celery_once_beat.errors import ScheduleError, StoreDataError, StoreUnavailableError
from celery_once_beat.features.admission.beat import may_wait
from celery_once_beat.features.keyed.store import read_children
from celery_once_beat.lookup import EntrySeen, WindowSeen
from celery_once_beat.status import BeatStatus, EntryStatus, Report, WindowStatus, as_json, coming_starts, make_report
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import some, span

from .context import Project, entry_argument, fail, pass_project
from .output import in_zone, local, painted, plain, print_json, print_rows, print_table

#: What status says of an entry, on one line of 80 columns; the rest is for "status ENTRY".
_ENTRY = ("ENTRY", "LAST WINDOW", "OUTCOME", "LATE", "NEXT", "OPEN")
#: Most entries that it lists unless it is asked for all.
_MOST_ENTRIES = 40
#: How much a line may hold of what a person has to read.
_COLUMNS = 80
#: Most workers that status names, and queues of each.
_MOST_WORKERS, _MOST_QUEUES = 20, 5
#: Records among which a window is looked for.
_MOST_RECORDS = 10_000
#: Most windows of an entry that are looked at for why they are left out.
_MOST_LEFT_OUT = 10_000


# -- status -----------------------------------------------------------------------------------------------------


@click.command()
@entry_argument(nargs=-1)
@click.option("--attention", is_flag=True, help="Only entries that need attention.")
@click.option("--queue", metavar="NAME", help="Only entries with windows in this queue.")
@click.option("--all", "all_", is_flag=True, help="All entries, however many.")
@pass_project(reads_schedule=True, json=True)
def status(project: Project, entry: tuple[str, ...], queue: str | None, **given: bool) -> None:
    """Show what needs attention, and how each entry stands.

    And which beats and workers live. Of 40 entries, those that need attention first, unless --all. An ENTRY that is
    named is shown in full.

    Exits with 1 where nothing is claimed: no beat lives, the ticks of one fail, one can't use the broker, or the Redis
    server's clock went back.
    """
    whole = _snapshot(project, entry)
    unknown = set(entry) - {each.entry for each in whole.entries}
    if unknown:
        project.entry(min(unknown))  # it says what there is
    entries = [
        each
        for each in whole.entries
        if (not entry or each.entry in entry)
        and (queue is None or queue in each.queues)
        and (each.attention or not given["attention"])
    ]
    report = replace(whole, entries=tuple(entries))
    if given["json_"]:
        print_json(as_json(report))
    else:
        _print_status(report, project.zone, all_=given["all_"] or bool(entry), in_full=bool(entry))
    if any(trouble.stops_all for trouble in report.troubles):
        sys.exit(1)


@click.command()
@pass_project(reads_schedule=True)
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds.")
def watch(project: Project, interval: float) -> None:
    """Show the status again and again, until Ctrl-C. It continues when Redis is back."""
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


def _snapshot(project: Project, names: Iterable[str] = ()) -> Report:
    return make_report(project.overview(names), project.schedule)


def _print_status(report: Report, zone: tzinfo, *, all_: bool = False, in_full: bool = False) -> None:
    click.echo(f"{local(report.now, zone)[:19]} {zone}, Redis answers in {report.latency * 1000:.1f} ms")
    for trouble in report.troubles:
        click.secho(_reason(trouble.reason, trouble.words, zone), fg="red")
    click.echo()
    entries = report.entries if all_ else report.entries[:_MOST_ENTRIES]
    notes = [_notes(entry, zone, in_full=in_full) for entry in entries]
    lines = [_status_line(entry, zone, report.now) for entry in entries]
    print_table(_ENTRY, lines, notes, nothing="No entries to show.")
    left = report.entries[len(entries) :]
    if left:
        worries = sum(bool(entry.attention) for entry in left)
        click.echo(f"… and {len(left)} more, {worries} of which need attention: --all shows them.")
    click.echo()
    _print_beats(report.beats)
    _print_workers(report)
    for why in report.unreadable:
        click.secho(f"Unreadable: {plain(why)}", fg="yellow")
    if report.code:
        click.secho(plain(f"{report.code}."), fg="yellow")


def _reason(reason: str, words: str, zone: tzinfo, indent: str = "") -> str:
    """Return why something needs attention, on lines of 80 columns; times are in ``zone``."""
    text = plain(in_zone(words if re.search(rf"\b{reason}\b", words) else f"{reason}: {words}", zone))
    return textwrap.fill(text, _COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False)


def _notes(entry: EntryStatus, zone: tzinfo, *, in_full: bool) -> str:
    """Return the lines below an entry's own."""
    pairs = zip(entry.reasons, entry.attention, strict=True)
    lines = [click.style(_reason(reason, words, zone, "  "), fg="yellow") for reason, words in pairs]
    if in_full:
        last = entry.last
        facts = {
            "task": entry.task, "schedule": entry.schedule, "queue": ", ".join(entry.queues) or None,
            "ran on": last and last.worker, "task id": last and last.task_id, "running": entry.running,
            "overdue": entry.overdue, "refused": entry.refused, **entry.outcomes,
        }  # fmt: skip
        lines += [f"  {name:<9} {plain(str(value))}" for name, value in facts.items() if value is not None]
    return "\n".join(lines)


def _print_beats(beats: Sequence[BeatStatus]) -> None:
    if not beats:
        return
    print_table(
        ["BEAT", "HEARD", *(name.upper() for name in beats[0].says)],
        [[plain(beat.beat), _ago(beat.heard), *map(plain, beat.says.values())] for beat in beats],
    )
    apps = sorted({beat.app for beat in beats if beat.app is not None})
    if len(apps) > 1:
        click.secho(f"Beats of {len(apps)} apps use the same keys: {plain(', '.join(apps))}; see doctor.", fg="yellow")
    if len(beats) == 1:
        click.secho("One beat lives: if it dies, nothing is published until another one starts.", fg="yellow")


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{span(seconds)} ago"


def _print_workers(report: Report) -> None:
    workers = report.workers
    if workers:
        click.echo()
        lines = [
            [plain(each.worker), _ago(each.heard), str(each.running), plain(some(each.queues, _MOST_QUEUES)) or "-"]
            for each in workers[:_MOST_WORKERS]
        ]
        print_table(["WORKER", "HEARD", "RUNNING", "QUEUES"], lines)
    if len(workers) > _MOST_WORKERS:
        click.echo(f"… and {len(workers) - _MOST_WORKERS} more workers.")


def _status_line(entry: EntryStatus, zone: tzinfo, now: datetime) -> list[str]:
    last = entry.last
    next_ = "paused" if entry.paused else "disabled" if entry.kind == "disabled" else _moment(entry.next, zone, now)
    return [
        click.style(plain(entry.entry), bold=True) if entry.attention else plain(entry.entry),
        _moment(last.start if last else None, zone, now),
        painted(last.state) if last else "-",
        span(last.late if last else None),
        next_,
        str(entry.open) + (f", {_waiting_words(entry, zone, now)}" if entry.buffered else ""),
    ]


def _moment(instant: datetime | None, zone: tzinfo, now: datetime) -> str:
    """Return an instant as ``02:30:00``, of another day as ``11-22 02:30``."""
    text = local(instant, zone, now)
    return text[5:16] if len(text) == len("2026-11-22 02:30:00") else text


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
@pass_project(reads_schedule=True, needs_store=False, json=True)
def next(  # noqa: A001  # the command's name
    project: Project, entry: str | None, number: int, since: str, *, json_: bool
) -> None:
    """Show the coming windows of ENTRY, or of all.

    In local time and UTC. Asks neither beats nor the broker.

    Windows that are due and wait come first, with what they wait for. Those of entries that are paused now are marked,
    and so are days on which the clocks change. What a schedule leaves out before the last of them is shown, with why.
    """
    after = project.instant(since, "--from")
    entries = list(project.schedule.entries) if entry is None else [project.entry(entry)]
    if project.store_trouble and entry is None and not json_:
        click.echo(f"Schedules that were set at run time aren't shown: {project.store_trouble}", err=True)
    for name, why in project.schedule.entries.wrong.items() if entry is None else ():
        click.echo(f"once: entry {plain(str(name))} is left out: {plain(why)}", err=True)
    windows = list(islice(heapq.merge(*(_coming(each, after) for each in entries)), number))
    zones = {each.name: _zone(each, project) for each in entries}
    if not project.settings.redis_url:
        click.echo("once: no Redis is set (once_beat_redis_url): the schedule says this, no store was asked", err=True)
    seen = _seen(project, entries, {name for _, name in windows})
    paused = {name for name, known in seen.items() if known.account is not None and known.account.paused}
    if json_:
        print_json([_next_json(at, name, at.astimezone(zones[name]), paused) for at, name in windows])
        return
    lines = []
    for start, name in windows:
        notes = ["paused"] if name in paused else []
        notes += ["the clocks change"] if _clocks_change(start.astimezone(zones[name])) else []
        lines.append((start, name, ", ".join(notes)))
    for name, known in seen.items():
        waits = [each for each in reversed(known.windows) if each.waits_for or each.limit]
        lines += _joined(name, ((each.start, f"waits {_waits_for(each, zones[name])}") for each in waits))
    if windows:
        lines += _left_out(entries, after, windows[-1][0])
    table = [_next_line(start, name, start.astimezone(zones[name]), note) for start, name, note in sorted(lines)]
    print_table(["ENTRY", "LOCAL TIME", "UTC", ""], table, nothing="No window will start.")


def _next_json(start: datetime, name: str, there: datetime, paused: Collection[str]) -> dict[str, Any]:
    return {
        "entry": name,
        "start": format_instant(start),
        "local": there.isoformat(),
        "zone": str(there.tzinfo),
        "clocks_change": _clocks_change(there),
        "paused": name in paused,
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


def _seen(project: Project, entries: Sequence[BeatEntry], named: Collection[str]) -> Mapping[str, EntrySeen]:
    """Return what the store knows of those that are ``named``, and of those whose windows may wait.

    Nothing where no store can be asked.
    """
    tasks = project.app.tasks
    waits = (each.name for each in entries if may_wait(each, project.settings, tasks.get(each.source.task)))
    names = [*dict.fromkeys([*named, *waits])]
    if not names or not project.settings.redis_url:
        return {}
    try:
        return project.lookup.overview(names).entries
    except StoreUnavailableError:
        return {}


# -- history ----------------------------------------------------------------------------------------------------


def _print_window(window: WindowStatus, children: Sequence[tuple[str, str]], project: Project) -> None:
    """Print all that is known of a window; and how to end its execution, if it runs."""
    facts = {name: value for name, value in as_json(window).items() if value not in (None, "", 0, False)}
    for name, value in facts.items():
        click.echo(f"{name:<9} {plain(in_zone(str(value), project.zone))}")
    for name, task_id in children:
        click.echo(f"child     {plain(name)}, task {plain(task_id)}")
    if window.state == "running" and window.worker:
        words = ["celery", "-A", project.app.main or "…", "control", "-d", window.worker, "terminate", "SIGTERM"]
        click.echo(f"\nTo end this execution: {plain(shlex.join([*words, window.task_id]))}")


@click.command()
@entry_argument()
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@click.option("--window", metavar="TIME", help="Only the window that starts then, in full.")
@pass_project(json=True)
def history(project: Project, entry: str, number: int, window: str | None, *, json_: bool) -> None:
    """Show the last windows of ENTRY, newest first.

    Which beat claimed each, which worker ran it, how late, and for how long. With --window also its task's id, and how
    to end an execution of it.

    BEAT is the one that claimed the window, or took it over last when it was overdue. It is the store's own record,
    also of an entry that has left the schedule.
    """
    seen = project.lookup.entry(entry, _MOST_RECORDS)  # of the newest that ended some may have started earlier
    if seen.trouble:
        raise StoreDataError(seen.trouble)
    if seen.account is None and not seen.windows:
        fail(f"the store has never heard of an entry {entry!r}, or has forgotten it")
    start = None if window is None else project.instant(window, "--window")
    found = [each for each in seen.windows if start in (None, each.start)][:number]
    windows = [WindowStatus.of(each, entry, project.settings.key_prefix) for each in found]
    zone = project.zone
    children = [] if start is None else read_children(project.store, entry, start)
    if json_:
        named = [{"entry": name, "task_id": task_id} for name, task_id in children]
        print_json({"entry": entry, "windows": as_json(windows), **({} if start is None else {"children": named})})
        return
    if start is not None:
        for each in windows:  # one that was ordered again has its last record too
            _print_window(each, children, project)
        if not windows:
            click.echo("No such window is known.")
        return
    columns: dict[str, Callable[[WindowStatus], str]] = {
        "WINDOW": lambda each: local(each.start, zone),
        "OUTCOME": lambda each: _outcome(each, zone),
        "BEAT": lambda each: plain(each.beat),
        "RAN ON": lambda each: plain(each.worker or None),
        "TRIES": lambda each: str(each.attempts),
        "LATE": lambda each: span(each.late),
        "TOOK": lambda each: span(each.took),
        "REFUSED": lambda each: str(each.refused),
        "FAILURE": lambda each: plain(each.failure),
    }
    print_rows(windows, columns, f"{plain(entry)}: no window has an outcome yet.")


def _outcome(window: WindowStatus, zone: tzinfo) -> str:
    """Say how a window stands, and what is unusual about it."""
    waits, past = _waits_for(window, zone), window.past_deadline()
    missed = f", {window.missed} windows" if window.missed > 1 else ""
    late = "" if past is None else f", {span(past)} past its deadline"
    return painted(window.state) + missed + (f", waits {waits}" if waits else "") + late
