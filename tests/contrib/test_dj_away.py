"""A database that is away, locked, frozen or empty: beats go on with the rows that they know."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from processes import Proc
from servers import PostgresServer
from shops import ONCE, Shop

from celery_once_beat.windows import parse_instant

SECOND = timedelta(seconds=1)
AWAY = "the database can't be read, beat goes on with the rows that it knows"


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The session's PostgreSQL, to be stopped and frozen."""
    yield postgres_server
    postgres_server.resume()
    if not postgres_server.alive:
        postgres_server.restart()


def check_said_once(beats: list[Proc], why: str) -> None:
    for beat in beats:
        beat.wait_log("the database can be read again", 20)
        assert len(re.findall(AWAY, beat.log)) == 1
        assert re.search(f"{AWAY}: .*{why}", beat.log)
        assert len(re.findall("the database can be read again", beat.log)) == 1
        assert "Traceback" not in beat.log


def check_no_gap(shop: Shop) -> None:
    starts = [parse_instant(start) for start in shop.ran("tick")]
    assert starts == [starts[0] + n * SECOND for n in range(len(starts))]


def test_a_database_that_is_away(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """Each beat says so once, and once that it is back; no window is lost, and the next edit is seen."""
    shop = new_shop("postgres")
    shop.orm("row('tick', interval=every(1))")
    shop.worker().wait_ready()
    beats = shop.beats()
    shop.wait_ran("tick", 2)
    server.stop()
    for beat in beats:
        beat.wait_log(AWAY, 10)
    shop.wait_ran("tick", len(shop.ran("tick")) + 3)
    assert shop.once("next", "-S", ONCE, exit_code=69).startswith("once: the database can't be read: OperationalError")
    server.restart()
    check_said_once(beats, "Operational")
    shop.orm("connection.close(); row('new', interval=every(1))")
    shop.wait_ran("new", 1)
    for entry in ("tick", "new"):
        shop.store.pause(entry)
    shop.wait_even()
    check_no_gap(shop)


def test_a_database_that_hangs(new_shop: Callable[..., Shop], server: PostgresServer) -> None:
    """No query comes back: windows go on in time, and a beat ends when it is told to."""
    shop = new_shop("postgres", more={"CONN_MAX_AGE": None})
    shop.orm("row('tick', interval=every(1))")
    shop.worker().wait_ready()
    beats = shop.beats()
    shop.wait_ran("tick", 2)
    server.pause()
    before = len(shop.ran("tick"))
    shop.wait_ran("tick", before + 4)
    assert beats[0].stop() == 0
    shop.wait_ran("tick", before + 6)
    server.resume()
    shop.orm("row('new', interval=every(1))")
    shop.wait_ran("new", 1)
    check_no_gap(shop)


def test_a_locked_file(new_shop: Callable[..., Shop]) -> None:
    """SQLite under a long exclusive transaction is away for everybody else."""
    shop = new_shop(timeout=1)
    shop.orm("row('tick', interval=every(1))")
    shop.worker().wait_ready()
    beats = shop.beats()
    shop.wait_ran("tick", 2)
    shop.orm("connection.cursor().execute('BEGIN EXCLUSIVE')")
    for beat in beats:
        beat.wait_log(AWAY, 15)
    shop.wait_ran("tick", len(shop.ran("tick")) + 2)
    shop.orm("connection.cursor().execute('COMMIT'); row('new', interval=every(1))")
    check_said_once(beats, "database is locked")
    shop.wait_ran("new", 1)
    check_no_gap(shop)


def test_a_start_without_a_database(new_shop: Callable[..., Shop], sqlite_template: Path) -> None:
    """A beat that starts meanwhile waits; then it goes on where the last one stopped, as after any outage."""
    shop = new_shop()
    shop.orm("""row('tick', interval=every(1), headers='{"once": {"catch_up": "all"}}')""")
    shop.worker().wait_ready()
    beats = shop.beats()
    shop.wait_ran("tick", 2)
    for beat in beats:
        beat.kill()
    path = Path(shop.database["NAME"])
    shop.orm("connection.close()")
    shutil.move(path, path.with_suffix(".away"))
    beats = shop.beats()
    for beat in beats:
        beat.wait_log(f"{AWAY}: .*no such table", 10)
    shutil.move(path.with_suffix(".away"), path)
    shop.wait_ran("tick", len(shop.ran("tick")) + 6)
    check_said_once(beats, "no such table")
    check_no_gap(shop)
