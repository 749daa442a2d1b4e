"""The commands that check: ``doctor`` what is set up, ``audit`` whether a window is lost."""

from __future__ import annotations

import platform
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import islice
from typing import Any

import click
from kombu.utils.url import maybe_sanitize_url

from celery_once_beat.beat import broadcast_entries
from celery_once_beat.errors import ScheduleError
from celery_once_beat.identity import host_of
from celery_once_beat.lookup import Overview
from celery_once_beat.rules import Finding, checks
from celery_once_beat.status import Listed, Report, line_up, make_report
from celery_once_beat.windows import format_instant
from celery_once_beat.wording import did_you_mean, number_of, shown, some

from .context import Project, pass_project
from .output import in_zone, plain, print_json, print_rows

#: Names in one line.
_NAMED = 10
#: Most windows that were left out that are counted of one entry.
_MOST_EXCLUDED = 100_000
_VERDICTS = {"balances": "green", "doesn't balance": "red", "can't be read": "red"}
_COLOURS = {"ok": "green", "warn": "red", "note": "yellow"}


@click.command()
@pass_project(reads_schedule=True, json=True)
def doctor(project: Project, *, json_: bool) -> None:
    """Check what could break the promise.

    Redis, clocks, leases, entries, beats and workers. Exits with 1 if something does.
    """
    overview = project.overview()
    report = make_report(overview, project.schedule)
    findings = list(_findings(project, overview, report))
    bad = [finding for finding in findings if finding.verdict == "warn"]
    if json_:
        print_json({"healthy": not bad, "checks": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            mark = click.style(f"{finding.verdict:<4}", fg=_COLOURS[finding.verdict])
            click.echo(f"{mark}  {finding.check}: {plain(in_zone(finding.found, project.zone))}")
            if finding.advice:
                click.echo(f"      → {finding.advice}")
        click.echo()
        worries = sum(bool(entry.attention) for entry in report.entries)
        needs = f"; {number_of(worries, 'entry needs', 'entries need')} attention: see status" if worries else ""
        set_up = f"{number_of(len(bad), 'thing')} to set" if bad else "Set up right"
        click.echo(f"{set_up}{needs or ('' if bad else ', and all is well')}.")
    if bad:
        sys.exit(1)


def _findings(project: Project, overview: Overview, report: Report) -> Iterator[Finding]:
    app, settings, schedule = project.app, project.settings, project.schedule
    yield from _versions(project)
    yield from _meaning(project)
    info, trouble = project.store.server()
    if trouble:
        yield Finding("server", "note", f"may not be asked: {trouble}", "allow INFO, or check it by hand")
    else:
        yield from checks.server_findings(info, settings)
    yield from checks.node_findings(project.store.trip.clocks(), settings)
    yield from checks.clock_findings((beat.beat, beat.offset) for beat in overview.beats if beat.offset is not None)
    lengths = list(_lengths(project, overview))
    try:
        transport = str(app.connection_for_write().transport_cls)
    except Exception as exc:  # noqa: BLE001  # every transport has errors of its own
        yield Finding("broker", "warn", f"can't be used: {type(exc).__name__}: {exc}", "fix broker_url")
    else:
        yield from checks.lease_findings(transport, app.conf.broker_transport_options or {}, lengths)
        everywhere = broadcast_entries(app, (entry.source for entry in schedule.entries if entry.tracked))
        yield from checks.delivery_findings(transport, everywhere)
    yield from _beats(project, [beat.beat for beat in overview.beats])
    alive = {beat.beat for beat in overview.beats}
    accounts = {name: seen.account for name, seen in overview.entries.items() if seen.account is not None}
    loaders = {
        name: {beat: known for beat, known in account.loaders.items() if beat in alive}
        for name, account in accounts.items()
    }
    yield from checks.zone_findings(loaders.items())
    made = [each.entry for each in report.entries if checks.made_by_celery(each.entry, each.task or "")]
    yield from checks.alias_findings(
        (name, accounts[name].fingerprint or "", frozenset(loaders[name])) for name in made if name in accounts
    )
    for beat in report.beats:
        if beat.trouble:
            check, advice = "broker", "repair the broker; beats continue by themselves"
            if beat.failing:
                check, advice = "ticks", "its log says where; if that isn't the base scheduler's, please report it"
            yield Finding(check, "warn", f"beat {beat.beat}: {beat.trouble}", advice)
    for each in report.troubles:
        if not each.stops_all:  # the others have checks of their own
            yield Finding(each.reason, "warn", each.words, "see docs/runbook.md")
    yield from checks.app_findings([(beat.beat, beat.app) for beat in overview.beats], settings)
    yield from _workers(project, report)
    for trouble in report.unreadable:
        yield Finding("keys", "warn", f"unreadable: {trouble}", "delete it, or change once_beat_key_prefix")
    yield from _entries(project, report)


def _lengths(project: Project, overview: Overview) -> Iterator[tuple[str, float]]:
    """Yield each lease and each countdown: whose it is, and its seconds."""
    entries = project.schedule.entries
    yield from entries.leases()
    for listed in line_up(project.schedule, overview)[0]:
        if not listed.of_code and listed.lease is not None:
            yield f"lease of {listed.name}", listed.lease
        if listed.countdown:
            yield f"countdown of {listed.name}", listed.countdown


def _versions(project: Project) -> Iterator[Finding]:
    names = ("celery-once-beat", "celery", "kombu", "redis")
    found = ", ".join(f"{name} {version(name)}" for name in names)
    yield Finding("versions", "ok", f"{found}, Python {platform.python_version()}, time zone {project.zone}")


def _meaning(project: Project) -> Iterator[Finding]:
    """Say what the settings mean: how long recovery takes, and what runs late."""
    s, conf = project.settings, project.app.conf
    servers = ";".join(maybe_sanitize_url(url) for url in s.redis_url.split(";"))
    yield Finding("store", "ok", f"{servers}, keys {s.key_prefix}…")
    claimed, running = s.claim_lease + s.recovery_interval + 0.5, s.lease + 1 + s.recovery_interval + 1
    yield Finding(
        "recovery",
        "ok",
        f"what a killed beat had claimed goes out within {claimed:g} s; what a killed worker ran is published again "
        f"within {running:g} s (leases of its own apart), up to {s.max_attempts} executions; a lost message after "
        f"{s.start_timeout:g} s",
    )
    late = {
        "latest": "the newest of them runs",
        "all": f"up to {s.max_catch_up} of them run",
        "none": "none of them runs",
    }
    grace = "" if s.grace is None else f"; what is later than {s.grace:g} s never runs"
    if s.cron_starting_deadline is not None:
        grace += f"; of crontabs, what is claimed later than {s.cron_starting_deadline:g} s doesn't run"
    yield Finding(
        "catching up", "ok", f"windows more than {s.tolerance:g} s late, since no beat ran: {late[s.catch_up]}{grace}"
    )
    if conf.task_always_eager:
        yield Finding("eager", "warn", "task_always_eager: tasks run within beat", "unset task_always_eager")


def _beats(project: Project, alive: list[str]) -> Iterator[Finding]:
    if not alive:
        yield Finding(
            "beats", "warn", "none lives", "start two, unless Redis is full: celery … beat -S once (or once-django)"
        )
    elif len(alive) == 1:
        yield Finding("beats", "warn", f"only {alive[0]} lives", "start another one, best on another machine")
    else:
        where = "" if len({host_of(name) for name in alive}) > 1 else ", all on one machine"
        yield Finding("beats", "note" if where else "ok", f"{len(alive)} live{where}")
    schedule = project.schedule
    if schedule.claims_windows:
        yield Finding("scheduler", "ok", schedule.scheduler)
    elif alive:
        yield Finding(
            "scheduler", "note", f"conf says {schedule.scheduler}, and the beats that live were started with -S once",
            "beat_scheduler = 'once' lets no beat start without it",
        )  # fmt: skip
    else:
        yield Finding(
            "scheduler", "warn", f"{schedule.scheduler} claims no windows",
            "beat_scheduler = 'once', or start beat with -S once",
        )  # fmt: skip


def _workers(project: Project, report: Report) -> Iterator[Finding]:
    for queue in report.stuck_queues:
        found = f"{queue.why}; {number_of(queue.stuck, 'window waits', 'windows wait')}"
        messages, name = project.messages(queue.queue), plain(shlex.quote(queue.queue))
        if messages is not None:
            found += f"; it has {number_of(messages, 'message')}, the broker says"
        steps = [] if queue.workers else [f"start a worker with -Q {name}"]
        steps += [f"celery once republish --queue {name}"] if messages == 0 else []
        yield Finding("workers", "note" if queue.workers else "warn", found, ", then ".join(steps))
    if any(not queue.workers for queue in report.stuck_queues):
        return
    living = [plain(worker.worker) for worker in report.workers if worker.lives]
    if living:
        yield Finding("workers", "ok", f"{len(living)} live that know windows: {some(living, _NAMED)}")
    else:
        yield Finding("workers", "warn", "none lives that knows windows", "start one: celery worker")


def _entries(project: Project, report: Report) -> Iterator[Finding]:
    code = project.schedule.entries
    scheduled = [entry for entry in report.entries if entry.kind == "scheduled"]
    named = ((entry.entry, entry.task or "") for entry in scheduled)
    yield from checks.moment_findings(named, datetime.now(timezone.utc), socket.gethostname())
    if report.code:
        advice = "ask from where their code is, or deploy yours"
        yield Finding("code", "note", plain(report.code[0].lower() + report.code[1:]), advice)
    # What other code accepts isn't known here: its beats warn of the others.
    judged = {entry.name for entry in code if entry.policy.tracked is None}
    told = [(entry.entry, entry.task) for entry in scheduled if entry.tracked is False and entry.entry in judged]
    tasks = project.app.tasks
    for name, task in told:
        if task not in tasks:
            what = f"this app has no task {shown(task)}{did_you_mean(str(task), tasks, repr)}"
            yield Finding(f"entry {plain(name)}", "warn", what, "correct its name, or import the module that has it")
    untracked = [name for name, task in told if task in tasks]
    if untracked:
        yield Finding(
            "untracked", "warn", some(untracked, _NAMED),
            "task_cls=OnceTask on the app or base=OnceTask on the task; or accept it: {'once': {'tracked': False}}",
        )  # fmt: skip
    misconfigured = [entry for entry in report.entries if entry.misconfigured]
    for entry in misconfigured:
        yield Finding(f"entry {plain(entry.entry)}", "warn", "; ".join(entry.misconfigured))
    if not misconfigured:
        yield Finding("entries", "ok", f"{len(scheduled)}, each can be claimed")


# -- audit ------------------------------------------------------------------------------------------------------


@click.command()
@pass_project(reads_schedule=True, json=True)
def audit(project: Project, *, json_: bool) -> None:
    """Count each entry's windows, to see whether one is lost.

    An account balances if the windows that the schedule defines = outcomes + open + untracked.

    The count runs from the first cursor under the present definition to the cursor now. What a schedule excludes is
    no window: it is counted apart, up to 100,000 of an entry. Exits with 1 if an account doesn't balance or can't be
    read. It counts by the schedules that the beats run; one that raises, or whose type only their code knows, isn't
    judged.
    """
    listed, _ = line_up(project.schedule, project.overview())
    accounts = [_judge(each) for each in sorted(listed, key=lambda each: each.name)]
    bad = [each for each in accounts if each["verdict"] in ("doesn't balance", "can't be read")]
    if json_:
        print_json({"balances": not bad, "entries": accounts})
    elif not accounts:
        click.echo("The schedule has no entries.")
    else:
        _print_audit(accounts, len(bad))
    if bad:
        sys.exit(1)


def _judge(listed: Listed) -> dict[str, Any]:
    name, entry, account = listed.name, listed.entry, listed.seen.account
    if account is None:
        trouble = listed.seen.trouble
        return {"entry": name, "verdict": "can't be read" if trouble else "not loaded yet", "why": trouble}
    judged = {"entry": name, "since": format_instant(account.since), "until": format_instant(account.cursor)}
    if entry is None or not entry.is_in_force(account.fingerprint):
        return {**judged, "verdict": "another definition", "why": "the beats have one that this process's code doesn't"}
    try:
        accounted, polled = account.accounted, entry.timetable.polled
        defined = accounted if polled else entry.timetable.count(account.since, account.cursor)
        excluded = sum(1 for _ in islice(entry.timetable.left_out(account.since, account.cursor), _MOST_EXCLUDED))
    except ScheduleError as exc:
        return {**judged, "verdict": "can't be counted", "why": str(exc)}
    lacks = defined - accounted
    how = "have no account" if lacks > 0 else "too many are accounted for"
    return {
        **judged,
        "defined": defined,
        "outcomes": account.counts,
        "excluded": excluded,
        "open": account.owed,
        "accounted": accounted,
        "verdict": "doesn't balance" if lacks else "balances",
        "why": f"{abs(lacks)} windows {how}" if lacks else "",
    }


def _outcomes(account: dict[str, Any]) -> str:
    numbers = [*sorted(account.get("outcomes", {}).items()), ("excluded", account.get("excluded"))]
    return ", ".join(f"{number} {what}" for what, number in numbers if number) or "-"


def _verdict(account: dict[str, Any]) -> str:
    verdict, why = account["verdict"], account["why"]
    return click.style(verdict, fg=_VERDICTS.get(verdict, "yellow")) + (f": {plain(why)}" if why else "")


def _print_audit(accounts: list[dict[str, Any]], bad: int) -> None:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "ENTRY": lambda each: plain(each["entry"]),
        "WINDOWS": lambda each: str(each.get("defined", "-")),
        "OUTCOMES": _outcomes,
        "OPEN": lambda each: str(each.get("open", "-")),
        "VERDICT": _verdict,
    }
    print_rows(accounts, columns)
    click.echo()
    found = f"{bad} of {len(accounts)} accounts don't balance or can't be read."
    click.echo(found if bad else "Every account balances.")
