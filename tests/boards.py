"""A board as its tests see it, and what they compare it with."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from crons import cron
from processes import Proc
from system import System

from celery_once_beat.beat.schedule import LoadedSchedule, load_schedule
from celery_once_beat.settings import Settings
from celery_once_beat.windows import parse_instant

#: Starts a board, and opens a page: the fixtures ``board`` and ``visit``.
Start = Callable[..., "Board"]
Visit = Callable[..., Any]
WORK = "apps.once_app.work"
TOKEN = "a-token-of-the-tests-0123456789"

#: All rules, the best practices and those that come with WCAG 2.2 too.
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


@dataclass(frozen=True)
class Answer:
    status: int
    #: By lower-case name.
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Board:
    """A board that runs. What is asked is sent as it stands: nothing is put right on the way."""

    proc: Proc
    url: str

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)

    def ask(
        self, path: str = "/", method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None
    ) -> Answer:
        with closing(self.connect()) as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read().decode())


def start_board(system: System, *arguments: str, name: str = "board", port: int = 0, **env: Any) -> Board:
    """Start a board for the system's app; returns once it listens."""
    proc = system.celery("once", "dashboard", "--port", str(port), *arguments, name=name, **env)
    return Board(proc, proc.wait_log(r"the board is at (http://[^\s,]+)").group(1))


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def row(page: Any, name: str) -> Any:
    """An entry's row on a page, by its name."""
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))


def check_page(page: Any) -> set[str]:
    """Have axe-core try its rules on what a browser shows; returns those that are broken."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page, options=RULES)
    assert len(results.response["passes"]) > 15, "the rules were tried"
    return {violation["id"] for violation in results.response["violations"]}


def loaded_of(system: System) -> LoadedSchedule:
    """The system's schedule, as its beats have it."""
    app = Celery("filled", broker=system.broker_url, set_as_current=False)
    app.conf.beat_schedule = {
        name: {
            "task": entry["task"],
            "schedule": cron(entry["cron"]) if "cron" in entry else timedelta(seconds=entry["every"]),
            "options": {"once": {"anchor": parse_instant(entry["anchor"])}} if "anchor" in entry else {},
        }
        for name, entry in system.entries.items()
    }
    return load_schedule(app, Settings(redis_url=system.store_url))
