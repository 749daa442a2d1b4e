"""``audit``: count each entry's windows again, and compare."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import click

from celery_once_beat.errors import ScheduleError
from celery_once_beat.status import Listed, line_up
from celery_once_beat.windows import format_instant

from .context import Project, pass_project
from .output import plain, print_json, print_table

#: Most windows that were left out that are counted of one entry.
_MOST_EXCLUDED = 100_000
_COLOURS = {"balances": "green", "doesn't balance": "red", "can't be read": "red"}


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


def _print_audit(accounts: list[dict[str, Any]], bad: int) -> None:
    print_table(
        ["ENTRY", "WINDOWS", "OUTCOMES", "OPEN", "VERDICT"],
        [
            [
                plain(each["entry"]),
                str(each.get("defined", "-")),
                _outcomes(each),
                str(each.get("open", "-")),
                click.style(each["verdict"], fg=_COLOURS.get(each["verdict"], "yellow"))
                + (f": {plain(each['why'])}" if each["why"] else ""),
            ]
            for each in accounts
        ],
    )
    click.echo()
    click.echo(
        f"{bad} of {len(accounts)} accounts don't balance or can't be read." if bad else "Every account balances."
    )
