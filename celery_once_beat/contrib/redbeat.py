"""``celery once schedules import redbeat``: RedBeat's entries become schedules that are set at run time.

RedBeat's own client and classes read them, so celery-redbeat has to be installed. What they decode is checked as what
any caller sets. Of RedBeat's keys only its lock is changed.

RedBeat writes last_run_at right before it sends. So every window up to there has been sent, or passed over by RedBeat,
and every later one is owed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import click
from celery import Celery
from celery.schedules import BaseSchedule, schedule
from kombu.utils.url import maybe_sanitize_url
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf, get_redis
from redbeat.schedules import rrule
from redis.exceptions import ConnectionError, RedisError, TimeoutError  # noqa: A004  # redis-py's names

from celery_once_beat import errors
from celery_once_beat.cli.context import Project, fail, login_name, pass_project
from celery_once_beat.cli.output import local, plain, print_json
from celery_once_beat.cli.schedules import COLOURS, SIGNS, name_unknown_tasks, when_words
from celery_once_beat.client import Wanted
from celery_once_beat.identity import order_name
from celery_once_beat.rules import check_anchor, latest_start, spread_offset
from celery_once_beat.schedules import Definition, RRule, check_name, check_words
from celery_once_beat.schedules.rrule import RULE_FIELDS
from celery_once_beat.status import as_json
from celery_once_beat.store import Loaded, raised
from celery_once_beat.wording import expect, shown

#: What stands in RedBeat's lock from an import on.
_HELD = "celery once schedules import redbeat"
#: In the log of changes. What has it as its last change, another import may change.
_NOTE = "imported from RedBeat"
_LEFT_OUT = "left out"


@click.command("import")
@click.argument("source", type=click.Choice(["redbeat"]), expose_value=False)  # there is one
@click.option("--url", help="RedBeat's Redis. Default: redbeat_redis_url, else the broker.")
@click.option("--dry-run", is_flag=True, help="Only show what would be set, also while RedBeat runs.")
@click.option("--by", metavar="NAME", default=login_name, help="Who does it. Default: your login name.")
@pass_project(json=True)
def import_(project: Project, *, url: str | None, dry_run: bool, by: str, json_: bool) -> None:
    """Set RedBeat's entries here, so that they continue where it stopped.

    No window runs twice or is left out.

    All of RedBeat's beats have to be stopped. Its lock is taken, for good, so that none can work from then on; nothing
    else of its keys is changed. Ask again at any time: what is here already stays.
    Exits with 1 while a beat of RedBeat's works, and where an entry can't be carried over; the others are.

    --json prints an object: imported, and entries, each with name, what, why, counts_from and definition.
    """
    with _connect(project.app, url) as client:
        lock = ensure_conf(project.app).lock_key
        works = _held_by_beat(client, lock, take=not dry_run) if lock else None
        if works is not None:
            click.echo(
                f"once: a beat of RedBeat's holds {lock}: stop all of them; if one was killed, its lock ends "
                f"within {works:.0f} s",
                err=True,
            )
            if not dry_run:
                sys.exit(1)
        moves = _Import(project, client, by).moves(carry=not dry_run)
    left_out = sum(move.what == _LEFT_OUT for move in moves)
    if json_:
        print_json({"imported": not dry_run, "entries": as_json(moves)})
    else:
        for move in moves:
            _print_move(move, project.zone)
        click.echo(f"{len(moves) - left_out} {'to import' if dry_run else 'imported'}, {left_out} left out.")
        if not dry_run and lock:
            click.echo(f"Beats of RedBeat's wait until {lock} is deleted.")
    name_unknown_tasks(project, (move.definition for move in moves))
    if not lock:
        click.echo("once: RedBeat has no lock (redbeat_lock_key): make sure that none of its beats runs", err=True)
    if left_out:
        sys.exit(1)


# -- RedBeat's Redis --------------------------------------------------------------------------------------------


@contextmanager
def _connect(app: Celery, url: str | None) -> Iterator[Any]:
    """Give RedBeat's own client; ``url`` goes before the app's settings.

    Raises SettingError, and StoreUnavailableError where its Redis doesn't answer.
    """
    if url:
        app.conf.redbeat_redis_url = url
        for made in ("redbeat_conf", "redbeat_redis", "redbeat_sentinel"):
            vars(app).pop(made, None)
    conf = ensure_conf(app)
    try:
        try:
            client = get_redis(app)
            number = client.zcard(conf.schedule_key)
        except (AttributeError, TypeError, ValueError):  # whose text may show a password
            found = maybe_sanitize_url(conf.redis_url) or "none"
            raise errors.SettingError(
                f"redbeat_redis_url: found {found}, expected RedBeat's Redis, with redbeat_redis_options that "
                "redis-py knows; or give --url"
            ) from None
        with closing(client):
            if not number:
                fail(f"{conf.schedule_key} is empty: does redbeat_redis_url, or --url, name RedBeat's Redis?")
            yield client
    except (RedisError, UnicodeDecodeError) as exc:
        if isinstance(exc, UnicodeDecodeError) or str(exc).startswith("WRONGTYPE"):
            raise errors.StoreDataError(
                f"the keys {conf.schedule_key} and {conf.statics_key} aren't RedBeat's"
            ) from exc
        raise errors.StoreUnavailableError(f"RedBeat's Redis: {type(exc).__name__}: {exc}") from exc


def _held_by_beat(client: Any, lock: str, *, take: bool) -> float | None:
    """Return the seconds until the lock of a RedBeat beat ends, unless the beat extends it; None: no beat holds it.

    With ``take`` it is ours for good where it is free. Beats that wait for it wait on, until somebody deletes it.
    """
    if take:
        client.set(lock, _HELD, nx=True)
    holder, left = client.get(lock), client.pttl(lock)
    return None if holder is None or _text(holder) == _HELD else max(left, 0) / 1000


def _text(found: str | bytes) -> str:
    """Return a text of Redis: with the option ``cluster`` RedBeat's client doesn't decode."""
    return found.decode() if isinstance(found, bytes) else found


@contextmanager
def _reads() -> Iterator[None]:
    """Raise ValueError for whatever RedBeat's and Celery's classes raise for what isn't theirs."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except Exception as exc:
        raise ValueError(f"RedBeat can't read it: {shown(exc)}") from exc


# -- what becomes of an entry -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Move:
    """What becomes of one entry."""

    name: str
    #: ``add``, ``change``, ``same``, ``kept`` (it was changed here), ``static`` (beat_schedule has it), or left out.
    what: str
    #: Windows up to there don't count, later ones are owed; aware UTC. None: they count from now.
    counts_from: datetime | None = None
    #: What is set; None: nothing.
    definition: Definition | None = None
    paused: bool = False
    #: Of what is here already; 0: nothing.
    version: int = field(default=0, metadata={"json": False})
    #: Who set it and why, JSON.
    words: str = field(default="{}", metadata={"json": False})
    why: str = ""


def _print_move(move: _Move, zone: tzinfo) -> None:
    if move.what == _LEFT_OUT:
        click.secho(f"! {plain(move.name)}: left out: {plain(move.why)}", fg="red")
        return
    words = [] if move.definition is None else [plain(move.definition.task), when_words(move.definition)]
    words.append(
        "paused" if move.paused else f"from {'now' if move.counts_from is None else local(move.counts_from, zone)}"
    )
    line = f"{SIGNS.get(move.what, '=')} {plain(move.name)}: {', '.join(words)}"
    click.secho(line + (f" ({plain(move.why)})" if move.why else ""), fg=COLOURS.get(move.what))


class _Import:
    """One import into the store of a project."""

    def __init__(self, project: Project, client: Any, by: str) -> None:
        self._project, self._schedules = project, project.schedules
        self._client = client
        self._words = check_words(by, _NOTE)
        self._now = self._project.store.snapshot().now
        #: One that can't be read is missing: setting it is a conflict, whose error names it.
        self._known = {each.name: each for each in self._schedules.list(wrong=lambda _: None)}

    def moves(self, *, carry: bool) -> list[_Move]:
        """Say what is to be done, and do it with ``carry``, by name; an entry that can't be read is left out."""
        conf = ensure_conf(self._project.app)
        statics = {*map(_text, self._client.smembers(conf.statics_key))}
        moves = []
        for found, score in self._client.zrange(conf.schedule_key, 0, -1, withscores=True):
            key = _text(found)
            name = key.removeprefix(conf.key_prefix)
            try:
                move = self._plan(name, self._read(name, key), on=score >= 0, static=name in statics)
                if carry:
                    self._carry(move)
            except errors.StoreUnavailableError:
                raise
            except (errors.OnceError, ValueError, OverflowError) as exc:
                again = ": ask again" if isinstance(exc, errors.VersionConflictError) else ""
                move = _Move(name, _LEFT_OUT, why=f"{exc}{again}")
            moves.append(move)
        return sorted(moves, key=lambda move: move.name)

    def _read(self, name: str, key: str) -> RedBeatSchedulerEntry:
        """Have RedBeat's classes read an entry; raises ValueError for what they can't."""
        check_name(name)
        with _reads():
            entry = RedBeatSchedulerEntry.from_key(key, app=self._project.app)
        when, last = entry.schedule, entry.last_run_at
        expect("schedule", when, isinstance(when, BaseSchedule), "an interval, a crontab or an rrule")
        expect("last_run_at", last, last is None or isinstance(last, datetime), "a datetime")
        expect("name", entry.name, entry.name == name, "that of its key")
        if last and last > self._now:
            raise ValueError(f"last_run_at: found {last}, which is to come: a clock is wrong; ask again then")
        return entry

    def _plan(self, name: str, found: RedBeatSchedulerEntry, *, on: bool, static: bool) -> _Move:
        entry = self._project.schedule.entries.get(name)
        if entry is not None and not entry.stored:
            until = found.last_run_at and self._run_until(found.last_run_at, entry.offset)
            return _Move(name, "static", until, why="it stays in beat_schedule")
        if static:
            raise ValueError("it was in beat_schedule, and has left that: RedBeat would delete it at its next start")
        definition = self._define(found)
        counts_from = self._counts_from(found, definition) if found.enabled else None
        move = _Move(name, "add", counts_from, definition, not (found.enabled and on))
        known = self._known.get(name)
        if known is None:
            self._schedules.check(name, definition)
            return replace(move, words=self._words)
        # What RedBeat never sent was due at once when it was imported first, and only then.
        move = replace(move, version=known.version, counts_from=counts_from if found.last_run_at else None)
        if (known.text(), known.paused) == (definition.text(), move.paused):
            return replace(move, what="same", words=check_words(known.changed_by, known.note))
        if known.note == _NOTE:
            self._schedules.check(name, definition)
            return replace(move, what="change", words=self._words)
        # People have changed it here. RedBeat may have run it all the same.
        words, by = check_words(known.changed_by, known.note), f" by {known.changed_by}" if known.changed_by else ""
        why = f"it was changed here{by}, and stays so"
        return replace(move, what="kept", definition=known, paused=known.paused, words=words, why=why)

    def _define(self, found: RedBeatSchedulerEntry) -> Definition:
        when, last = found.schedule, found.last_run_at
        options = found.options or {}
        options = dict(expect("options", options, isinstance(options, dict), "an object"))
        once = options.pop("once", {})
        if isinstance(when, rrule):
            when = RRule(**{name: getattr(when, name) for name in RULE_FIELDS})
        elif isinstance(when, schedule) and last and isinstance(once, dict):
            with _reads():  # an instant of its own grid: when RedBeat would send it next
                every = when.run_every  # type: ignore[attr-defined]  # celery-types lacks it
                grid = schedule(every, when.relative, nowfun=lambda: last, app=self._project.app)
                once = {"anchor": (last + grid.remaining_estimate(last)).astimezone(timezone.utc), **once}
        return Definition.of(
            found.task, when, self._project.zone, args=found.args, kwargs=found.kwargs, options=options, once=once
        )

    def _counts_from(self, found: RedBeatSchedulerEntry, definition: Definition) -> datetime | None:
        if found.last_run_at:
            spread = definition.once.get("spread")
            offset = spread_offset(found.name, spread if isinstance(spread, (int, float)) else 0.0)
            return self._run_until(found.last_run_at, offset)
        # RedBeat sends at once what it has never sent: the newest window is owed.
        try:
            anchor = check_anchor("anchor", definition.once.get("anchor"))
            newest = latest_start(definition.schedule, self._now, anchor=anchor)
        except errors.ScheduleError as exc:
            raise ValueError(str(exc)) from exc
        return None if newest is None else newest - timedelta(microseconds=1)

    def _run_until(self, last: datetime, offset: timedelta) -> datetime:
        """Return up to where the windows have run of an entry that start by ``offset`` later than RedBeat's."""
        until = last.astimezone(timezone.utc) + offset
        if until > self._now:
            raise ValueError(
                f"by its spread what RedBeat has sent would start until {until.isoformat()}: ask again then"
            )
        return until

    def _carry(self, move: _Move) -> None:
        if move.definition is not None:
            wanted = Wanted(move.name, move.definition, move.paused)
            self._schedules.put(wanted, move.words, if_version=move.version, counts_from=move.counts_from)
            return
        # An entry of beat_schedule counts from where RedBeat stopped: as a beat that loads it.
        entry, until = self._project.schedule.entries.get(move.name), move.counts_from
        if entry is None or until is None:
            return
        request = entry.load_request(order_name(), self._now)._replace(counts_from=until, absent_at=until)
        (reply,) = self._project.store.load_many([request])
        if not isinstance(raised(reply), Loaded):
            raise ValueError("living beats have loaded another definition of it from beat_schedule")  # noqa: TRY004
