"""A database that is away, locked, frozen or empty: beats go on with the rows that they know."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from processes import Proc, wait_until
from servers import PostgresServer
from shops import ONCE, Shop

from celery_once_beat.windows import parse_instant

pytestmark = pytest.mark.long

SECOND = timedelta(seconds=1)
AWAY = "beat continues with the rows that it knows, the database can't be read"
NO_ROWS = "beat knows no row yet, and runs none, the database can't be read"


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The session's PostgreSQL, to be stopped and frozen."""
    yield postgres_server
    postgres_server.resume()
    if not postgres_server.alive:
        postgres_server.restart()


def check_said_once(beats: list[Proc], why: str, away: str = AWAY) -> None:
    for beat in beats:
        beat.wait_log("the database can be used again", 60)
        assert len(re.findall(away, beat.log)) == 1
        assert re.search(f"{away}: .*{why}", beat.log)
        assert len(re.findall("the database can be used again", beat.log)) == 1
        assert "Traceback" not in beat.log


def check_no_gap(shop: Shop) -> None:
    shop.store.set_paused("tick", paused=True)
    shop.wait_recorded("tick")  # what is under way may come in any order
    starts = [parse_instant(start) for start in shop.ran("tick")]
    assert starts == [starts[0] + n * SECOND for n in range(len(starts))]


def ticking(new_shop: Callable[..., Shop], *kind: str, **options: Any) -> tuple[Shop, list[Proc]]:
    """A project with a row that is due every second, and its beats."""
    shop = new_shop(*kind, **options)
    shop.orm("row('tick', interval=every(1))")
    beats = shop.start()
    shop.wait_ran("tick", 2)
    return shop, beats


def test_a_database_that_is_away(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """Each beat says so once, and once that it is back; no window is lost, and the next edit is seen."""
    shop, beats = ticking(new_shop, "postgres")
    server.stop()
    for beat in beats:
        beat.wait_log(AWAY, 60)
    shop.wait_ran("tick", len(shop.ran("tick")) + 3)
    assert shop.once("next", "-S", ONCE, exit_code=69).startswith("once: the database can't be read: OperationalError")
    server.restart()
    check_said_once(beats, "Operational")
    shop.orm("connection.close(); row('new', interval=every(1))")
    shop.wait_ran("new", 1)
    for entry in ("tick", "new"):
        shop.store.set_paused(entry, paused=True)
    shop.wait_even()
    check_no_gap(shop)


def test_who_shows_the_rows_finds_them_again(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """A board lives for weeks: a connection that died with the database is no reason to show old rows for ever."""
    shop = new_shop("postgres")
    shop.orm(f"""
from apps.dj_shop.celery import app
from celery_once_beat.beat import load_schedule
from celery_once_beat.errors import OnceError
from celery_once_beat.settings import Settings

def names():
    try:
        return [entry.name for entry in load_schedule(app, Settings.from_app(app), {ONCE!r}).entries]
    except OnceError as exc:
        return str(exc)

row('tick', interval=every(1))
""")
    assert shop.orm.value("names()") == ["tick"]
    server.stop()
    assert "can't be read" in shop.orm.value("names()")
    server.restart()
    assert shop.orm.value("names()") == ["tick"]


def test_a_database_that_hangs(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """No query comes back: windows go on in time, and a beat ends when it is told to."""
    shop, beats = ticking(new_shop, "postgres", more={"CONN_MAX_AGE": None})
    server.pause()
    before = len(shop.ran("tick"))
    shop.wait_ran("tick", before + 4)
    assert beats[0].stop() == 0
    shop.wait_ran("tick", before + 6)
    server.resume()
    shop.orm("row('new', interval=every(1))")
    shop.wait_ran("new", 1)
    check_no_gap(shop)


def test_a_start_without_a_database(new_shop: Callable[..., Shop], sqlite_template: Path) -> None:
    """A beat that starts meanwhile says that it knows no row; then it goes on where the last one stopped."""
    shop = new_shop()
    shop.orm("""row('tick', interval=every(1), headers='{"once": {"catch_up": "all"}}')""")
    beats = shop.start()
    shop.wait_ran("tick", 2)
    for beat in beats:
        beat.kill()
    path = Path(shop.database["NAME"])
    shop.orm("connection.close()")
    shutil.move(path, path.with_suffix(".away"))
    beats = shop.beats()
    for beat in beats:
        beat.wait_log(f"{NO_ROWS}: .*no such table", 60)
    shutil.move(path.with_suffix(".away"), path)
    shop.wait_ran("tick", len(shop.ran("tick")) + 6)
    check_said_once(beats, "no such table", NO_ROWS)
    check_no_gap(shop)


def test_what_came_while_it_was_away_is_not_late(new_shop: Callable[..., Shop]) -> None:
    """Nobody knows since when it is there: its windows count from when it is seen."""
    shop = new_shop(timeout=5)  # longer than a busy machine holds up who writes
    shop.orm("row('tick', interval=every(1))")
    (beat, *_) = shop.start()
    shop.orm("""row('new', interval=every(1), enabled=False, headers='{"once": {"catch_up": "all"}}')""")
    shop.orm("connection.cursor().execute('BEGIN EXCLUSIVE')")
    beat.wait_log(AWAY, 60)
    away = datetime.now(timezone.utc)
    # By hand: Django would begin another transaction.
    table = "django_celery_beat_periodictask"
    for change in (f"{table} SET enabled = 1", f"{table}s SET last_update = '2030-01-01'"):
        shop.orm(f"connection.cursor().execute({f'UPDATE {change}'!r})")
    made = len(shop.ran("tick"))
    shop.wait_ran("tick", made + 18)
    longer = timedelta(seconds=18)  # than what a look may take; windows may have come late, and in less
    wait_until(lambda: datetime.now(timezone.utc) > away + longer, "it is away for long", 30)
    before = datetime.now(timezone.utc)
    shop.orm("connection.cursor().execute('COMMIT')")
    shop.wait_ran("new", 2)
    assert parse_instant(shop.ran("new")[0]) > before - SECOND


def test_a_database_that_may_only_be_read_for_a_while(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """As a replica may: said once, windows go on, and what is to be written is written afterwards."""
    shop = new_shop("postgres")
    shop.orm("row('tick', interval=every(1)); row('one-off', interval=every(1), one_off=True)")
    server.execute(f"ALTER DATABASE {shop.database['NAME']} SET default_transaction_read_only = on")
    shop.worker().wait_ready()
    beat = shop.beat(IN_CONF="1")
    beat.wait_log("beat continues with the rows that it knows, the database can't be written: .*read-only", 60)
    shop.wait_ran("one-off", 1)
    shop.wait_ran("tick", len(shop.ran("tick")) + 3)
    assert "the database can be used again" not in beat.log
    server.execute(f"ALTER DATABASE {shop.database['NAME']} SET default_transaction_read_only = off")
    shop.orm("connection.close()")
    wait_until(lambda: sorted(shop.names()) == ["in conf", "tick"], "the conf's row is made, the one-off disabled", 60)
    beat.wait_log("the database can be used again", 60)
    assert len(re.findall("the database can be used again", beat.log)) == 1
    assert len(re.findall("the database can't be", beat.log)) == 1
    assert len(shop.ran("one-off")) == 1
    assert "is left out" not in beat.log
