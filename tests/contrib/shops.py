"""Beats and workers of a Django project over one database, and a process that edits its rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Proc, environ, wait_until
from servers import MariaServer, PostgresServer
from system import System

__all__ = ("ONCE", "STOCK", "Orm", "Shop", "copy_of", "mariadb", "migrate", "postgres", "sqlite")

ONCE = "once-django"
STOCK = "django_celery_beat.schedulers:DatabaseScheduler"
#: Takes the lock that only who is alone gets, and gives it back; fails after two seconds.
_LOCK = """
with connection.cursor() as cursor:
    cursor.execute("PRAGMA busy_timeout")
    (patience,) = cursor.fetchone()
    cursor.execute("PRAGMA busy_timeout = 2000")
    try:
        cursor.execute("BEGIN EXCLUSIVE")
        cursor.execute("COMMIT")
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {patience}")
"""


def block_of_docs(page: str, name: str) -> str:
    """A page's block of Python, by the comment above it."""
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text()
    (found,) = re.findall(rf"<!-- {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    return found


def sqlite(path: Path, timeout: int = 20) -> dict[str, Any]:
    """Django's settings for a file; a process waits for another's lock so many seconds."""
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": timeout}}


def postgres(server: PostgresServer, name: str) -> dict[str, Any]:
    """Django's settings for a database of the server."""
    return {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": server.port, "USER": "once",
            "NAME": name, "OPTIONS": {"connect_timeout": 30}}  # fmt: skip


def mariadb(server: MariaServer, name: str) -> dict[str, Any]:
    """Django's settings for a database of the server."""
    return {"ENGINE": "django.db.backends.mysql", "HOST": "127.0.0.1", "PORT": server.port, "USER": "root",
            "NAME": name, "TEST": {}}  # fmt: skip


def migrate(database: dict[str, Any]) -> None:
    """Make the tables."""
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--verbosity", "0"], check=True, stdin=subprocess.DEVNULL,
        env=environ({"DJANGO_SETTINGS_MODULE": "apps.dj_shop.settings", "DATABASE": json.dumps(database)}),
    )  # fmt: skip


class Orm:
    """Runs Python in a process of the project; see ``apps/dj_shop/orm.py`` for what is there."""

    def __init__(self, env: dict[str, str], directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "apps.dj_shop.orm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environ(env), cwd=directory,
        )  # fmt: skip

    def __call__(self, code: str) -> Any:
        """Run it; returns what it leaves in ``result``."""
        print(json.dumps(code), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert answer["error"] is None, answer["error"]
        return answer["result"]

    def value(self, expression: str) -> Any:
        return self(f"result = {expression}")

    def row(self, name: str, fields: str = "enabled, total_run_count, last_run_at") -> Any:
        """A row's fields, as a list."""
        names = [field.strip() for field in fields.split(",")]
        return self.value(f"list(PeriodicTask.objects.values_list(*{names!r}).get(name={name!r}))")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Shop(System):
    """As :class:`System`, with entries that are rows."""

    app = "apps.dj_shop.celery"
    scheduler = ONCE
    database: dict[str, Any]
    orm: Orm
    settings_of_django: dict[str, Any]

    def use(self, database: dict[str, Any], **settings: Any) -> None:
        """All processes share that database and these settings of Django."""
        self.entries = {}
        self.database = database
        self.settings_of_django = settings
        self.orm = Orm(self.env(), self.directory)

    def env(self, **more: Any) -> dict[str, str]:
        env = super().env(**more)
        env.update(
            DJANGO_SETTINGS_MODULE="apps.dj_shop.settings",
            DATABASE=json.dumps(self.database),
            SETTINGS=json.dumps(self.settings_of_django),
        )
        return env

    def worker(self, name: str = "worker", *, env: Any = None, **options: Any) -> Proc:
        return super().worker(name, env=env, **{"pool": "solo", **options})

    def beats(self) -> list[Proc]:
        """Two, both with the rows read."""
        beats = [self.beat(f"beat{n}") for n in (1, 2)]
        for beat in beats:
            beat.wait_ready()
        return beats

    def start(self) -> list[Proc]:
        """A worker, and two beats."""
        self.worker().wait_ready()
        return self.beats()

    def ran(self, entry: str) -> list[str]:
        """The windows that are recorded as done, each as often as it is."""
        return sorted(event["start"] for event in self.ledger.read("recorded", entry=entry))

    def wait_ran(self, entry: str, number: int = 1, timeout: float = 60) -> None:
        """Wait until so many windows in all are recorded as done."""
        wait_until(lambda: len(self.ran(entry)) >= number, f"{number} windows of {entry} done", timeout)

    def wait_recorded(self, entry: str) -> None:
        """Wait until none of its windows is open, and all that are done are in the ledger, which learns it later."""
        wait_until(
            lambda: not self.account(entry).open and len(self.ran(entry)) >= self.outcomes(entry).get("done", 0),
            f"every window of {entry} has its outcome and is recorded",
            60,
        )

    def stand_still(self, beat: Proc, stop: Callable[[], None] | None = None) -> None:
        """Freeze a beat, at a moment when it has no lock of SQLite's file: nobody else could write until it goes on.

        ``stop()`` returns once it stands still.
        """
        stop = stop or beat.pause

        def frozen() -> bool:
            stop()
            try:
                self.orm(_LOCK)
            except AssertionError as exc:
                if "database is locked" not in str(exc):
                    raise
                beat.resume()
                return False
            return True

        wait_until(frozen, f"{beat!r} stands still without a lock", 60)

    def check_each_ran_once(self, *entries: str) -> None:
        """Of no window of theirs more than one end is recorded, or more than one body came to its end."""
        for entry in entries:
            assert len(set(self.ran(entry))) == len(self.ran(entry)), self.ran(entry)
            assert not self.ledger.finished_twice(entry)

    def audit(self) -> dict[str, Any]:
        """Each entry's account, which has to balance."""
        facts = json.loads(self.once("audit", "-S", ONCE, "--json"))
        assert facts["balances"], facts
        return {fact["entry"]: fact for fact in facts["entries"]}

    def wait_loaded(self, *entries: str, beats: int = 2) -> None:
        """Wait until so many beats have the same definition of each entry, and it is the one in force."""

        def marks(entry: str) -> list[str]:
            with self.client() as client:
                loaders, mark = client.hmget(self.store.entry_key(entry), "loaders", "fingerprint")
            loaded = (loaders or b"").decode().split()[1::3]
            return loaded if mark and set(loaded) == {mark.decode()} else []

        for entry in entries:
            wait_until(lambda entry=entry: len(marks(entry)) == beats, f"{beats} beats have loaded {entry}", 60)

    def wait_left(self, entry: str) -> None:
        """Wait until no beat has the entry any more."""
        wait_until(lambda: self.account(entry).fingerprint == "-", f"both beats have dropped {entry}", 60)

    def wait_disabled(self, *entries: str) -> None:
        """Wait until these rows are disabled."""
        wait_until(lambda: not {*entries} & {*self.names()}, f"{entries} are disabled", 60)

    def wait_even(self) -> None:
        """Wait until nothing is open; then every account balances."""
        wait_until(
            lambda: not any(self.account(entry).open for entry in self.names() if self.store.account(entry)),
            "every window has its outcome",
            60,
        )
        self.audit()

    def names(self) -> list[str]:
        return self.orm.value("list(PeriodicTask.objects.filter(enabled=True).values_list('name', flat=True))")


def copy_of(path: Path, folder: Path, timeout: int = 20) -> dict[str, Any]:
    """A copy of a file that has the tables."""
    copy = folder / "shop.sqlite3"
    copy.write_bytes(path.read_bytes())
    return sqlite(copy, timeout)
