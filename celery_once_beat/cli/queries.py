"""The commands that look: ``status``, ``watch``, ``next``, ``history``, ``ping``. None of them writes anything."""

from __future__ import annotations

import contextlib
import heapq
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from .context import Desk, as_json, at_desk, entry_argument, fail, print_json, scheduler_option
from .output import local, painted, plain, print_table, span

if TYPE_CHECKING:
    from celery_once_beat.beat import Row

#: How far a schedule that can only be asked again and again is asked for its next start.
_ASKED_FOR = timedelta(days=31)

__all__ = ("history", "next_windows", "ping", "status", "watch")


@click.command()
@click.option("--beat", metavar="ID", help="This beat: its ID, or the host name that its ID begins with.")
@as_json
@click.pass_context
def ping(ctx: click.Context, beat: str | None, json_: bool) -> None:  # noqa: FBT001
    """Exit with 0 where a beat lives, with 1 where none does: for probes.

    A beat lives if Redis has heard of it in the last 15 seconds. It is for a beat's own container to ask for
    its own: --beat $HOSTNAME.
    """
    from celery_once_beat.identity import is_of

    with at_desk(ctx) as desk:
        alive = desk.store.beats()
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


# -- status -----------------------------------------------------------------------------------------------------


@click.command()
@scheduler_option
@as_json
@click.pass_context
def status(ctx: click.Context, scheduler: str | None, json_: bool) -> None:  # noqa: FBT001
    """Show which beats live and how each entry stands; those that need attention come first.

    Exits with 1 where entries stand still, since the Redis server's clock went back.
    """
    with at_desk(ctx, scheduler) as desk:
        facts = _status(desk)
        if json_:
            print_json(facts)
        else:
            _print_status(facts, desk.zone)
    if facts["behind"]:
        ctx.exit(1)


@click.command()
@scheduler_option
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds.")
@click.pass_context
def watch(ctx: click.Context, scheduler: str | None, interval: float) -> None:
    """Show the status again and again, until Ctrl-C. It goes on when Redis comes back."""
    from celery_once_beat.errors import StoreUnavailableError

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    with at_desk(ctx, scheduler) as desk, contextlib.suppress(KeyboardInterrupt):
        while True:
            desk.read_again()
            try:
                facts = _status(desk)
            except StoreUnavailableError as exc:
                click.clear()
                click.secho(f"once: {plain(str(exc))}", fg="red")
            else:
                click.clear()
                _print_status(facts, desk.zone)
            time.sleep(interval)


def _status(desk: Desk) -> dict[str, Any]:
    from celery_once_beat.status import status_facts

    overview = desk.lookup.overview([row.name for row in desk.lineup.rows])
    return status_facts(overview, desk.lineup)


def _print_status(facts: dict[str, Any], zone: tzinfo) -> None:
    from celery_once_beat.windows import parse_instant

    now = parse_instant(facts["now"])
    click.echo(f"{local(facts['now'], zone)[:19]} {zone}, Redis answers in {facts['latency'] * 1000:.1f} ms")
    if facts["behind"]:
        click.secho(f"The server's clock is {span(facts['behind'])} behind the latest window: it went back.", fg="red")
    click.echo()
    _print_beats(facts["beats"])
    click.echo()
    if not facts["entries"]:
        click.echo("The schedule has no entries.")
        return
    lines = [_status_line(entry, zone, now) for entry in facts["entries"]]
    head = ["ENTRY", "LAST WINDOW", "OUTCOME", "RAN ON", "LATE", "NEXT", "OPEN", "OVERDUE", "REFUSED", "ATTENTION"]
    print_table(head, lines)


def _print_beats(beats: list[dict[str, Any]]) -> None:
    if not beats:
        click.secho("No beat lives: start one with -S once.", fg="red")
        return
    print_table(
        ["BEAT", "HEARD", "LAG", "CLOCK", "ENTRIES", "VERSION"],
        [
            [
                plain(beat["beat"]),
                f"{span(beat['heard'])} ago",
                span(beat["lag"]),
                "-" if beat["offset"] is None else f"{beat['offset']:+.3f} s",
                "-" if beat["entries"] is None else str(beat["entries"]),
                plain(beat["version"]),
            ]
            for beat in beats
        ],
    )
    apps = sorted({beat["app"] for beat in beats} - {None})
    if len(apps) > 1:
        click.secho(f"Beats of {len(apps)} apps have the same keys: {plain(', '.join(apps))}; see doctor.", fg="yellow")
    if len(beats) == 1:
        click.secho("One beat lives: if it dies, nothing is published until another one starts.", fg="yellow")


def _status_line(entry: dict[str, Any], zone: tzinfo, now: datetime) -> list[str]:
    last = entry["last"] or {}
    attention = "; ".join(entry["attention"])
    return [
        click.style(plain(entry["entry"]), bold=True) if attention else plain(entry["entry"]),
        local(last.get("start"), zone, now),
        painted(last["state"]) if last else "-",
        plain(last.get("worker") or None),
        span(last.get("late")),
        local(entry["next"], zone, now),
        str(entry["open"]),
        click.style(str(entry["overdue"]), fg="red") if entry["overdue"] else "0",
        str(entry["refused"]),
        click.style(plain(attention), fg="yellow") if attention else "",
    ]


# -- next -------------------------------------------------------------------------------------------------------


@click.command("next")
@entry_argument(required=False)
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@click.option("--from", "since", metavar="TIME", default="now", help="After this time; default: now.")
@scheduler_option
@as_json
@click.pass_context
def next_windows(
    ctx: click.Context,
    entry: str | None,
    number: int,
    since: str,
    scheduler: str | None,
    json_: bool,  # noqa: FBT001
) -> None:
    """Show the coming windows of ENTRY, or of all: in local time and UTC. Asks neither Redis nor the broker.

    Days on which the clocks change are marked.
    """
    from celery_once_beat.windows import format_instant

    with at_desk(ctx, scheduler) as desk:
        after = desk.instant(since, "--from")
        rows = list(desk.lineup.rows) if entry is None else [desk.row(entry)]
        for name, why in desk.lineup.rows.wrong.items() if entry is None else ():
            click.echo(f"once: entry {plain(str(name))} is left out: {plain(why)}", err=True)
        found = islice(heapq.merge(*(_coming(row, after) for row in rows)), number)
        windows: list[dict[str, Any]] = []
        for start, name in found:
            row = desk.row(name)
            zone = _zone(row, desk)
            there = start.astimezone(zone)
            windows.append(
                {
                    "entry": name,
                    "start": format_instant(start),
                    "local": there.isoformat(),
                    "zone": str(zone),
                    "clocks_change": _clocks_change(there, zone),
                }
            )
    if json_:
        print_json(windows)
        return
    if not windows:
        click.echo("No window will start.")
        return
    print_table(
        ["ENTRY", "LOCAL TIME", "UTC", ""],
        [
            [
                plain(window["entry"]),
                f"{window['local'][:10]} {window['local'][11:]}",
                window["start"][11:19] + "Z" if window["start"][:10] == window["local"][:10] else window["start"],
                click.style("the clocks change", fg="yellow") if window["clocks_change"] else "",
            ]
            for window in windows
        ],
    )


def _coming(row: Row, after: datetime) -> Iterator[tuple[datetime, str]]:
    from celery_once_beat.errors import ScheduleError, UndecidedError

    while True:
        try:
            start = row.after(after)
        except UndecidedError as exc:
            if exc.asked < after + _ASKED_FOR:
                continue
            click.echo(f"once: entry {row.name!r}: {exc}", err=True)
            return
        except ScheduleError as exc:
            click.echo(f"once: entry {row.name!r}: {exc}", err=True)
            return
        if start is None:
            return
        yield start, row.name
        if row.one_off:
            return
        after = start


def _zone(row: Row, desk: Desk) -> tzinfo:
    zone = getattr(row.entry.schedule, "tz", None)
    return zone if isinstance(zone, tzinfo) else desk.zone


def _clocks_change(there: datetime, zone: tzinfo) -> bool:
    """Whether the zone's clocks change on the local day of ``there``."""
    midnight = datetime(there.year, there.month, there.day, tzinfo=zone)
    following = midnight + timedelta(days=1)
    return midnight.utcoffset() != datetime(following.year, following.month, following.day, tzinfo=zone).utcoffset()


# -- history ----------------------------------------------------------------------------------------------------


@click.command()
@entry_argument()
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@as_json
@click.pass_context
def history(ctx: click.Context, entry: str, number: int, json_: bool) -> None:  # noqa: FBT001
    """Show the last windows of ENTRY, newest first: who claimed and who executed each, how late, how long.

    It is the store's own record, also of an entry that has left the schedule.
    """
    from celery_once_beat.errors import StoreDataError
    from celery_once_beat.status import story_facts

    with at_desk(ctx) as desk:
        seen = desk.lookup.entry(entry, number)
        if seen.trouble:
            raise StoreDataError(seen.trouble)
        if seen.account is None and not seen.stories:
            fail(f"the store has never heard of an entry {entry!r}, or has forgotten it")
        stories = [story_facts(story) for story in seen.stories[:number]]
        zone = desk.zone
    if json_:
        print_json({"entry": entry, "windows": stories})
        return
    if not stories:
        click.echo(f"{plain(entry)}: no window has an outcome yet.")
        return
    print_table(
        ["WINDOW", "OUTCOME", "CLAIMED BY", "RAN ON", "TRIES", "LATE", "TOOK", "REFUSED"],
        [
            [
                local(story["start"], zone),
                painted(story["state"]) + (f", {story['missed']} windows" if story["missed"] > 1 else ""),
                plain(story["beat"]),
                plain(story["worker"] or None),
                str(story["attempts"]),
                span(story["late"]),
                span(story["took"]),
                str(story["refused"]),
            ]
            for story in stories
        ],
    )
