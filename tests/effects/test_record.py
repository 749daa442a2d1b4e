"""``window.record`` with SQLAlchemy, on real databases. Each window made here is an execution of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from databases import START, Base, notes
from servers import databases
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_once_beat import Window
from celery_once_beat.contrib.sqlalchemy import effects, effects_table
from celery_once_beat.errors import RecordError, WindowRecorded
from celery_once_beat.features.effects.task import Effects
from celery_once_beat.settings import Settings
from celery_once_beat.testing import window


def execution(entry: str = "nightly", start: datetime | str = START, **more: Any) -> Window:
    return window(entry, start, **more)


def write(base: Base, of: Window, text: str, **record: Any) -> bool:
    """A body: one transaction, in which the window is recorded first."""
    with Session(base.engine) as session, session.begin():
        if not of.record(session, **record):
            return False
        session.execute(notes.insert().values(text=text))
    return True


def give_up(base: Base, of: Window) -> None:
    """A body that fails before its commit."""
    with Session(base.engine) as session:
        of.record(session)
        session.rollback()


# -- who is first


def test_the_first_to_commit_is_the_one(base: Base) -> None:
    """A later execution is refused, and nothing of it is written. The row says who was first."""
    assert write(base, execution(attempt=1, fence=7), "first")
    with pytest.raises(WindowRecorded):
        write(base, execution(attempt=2, fence=8), "second")
    assert base.written() == ["first"]
    (row,) = base.rows()
    assert (row.entry, row.start, row.step) == ("nightly", "2026-11-21T02:00:00.000000Z", "")
    assert (row.fence, row.attempt, row.result) == (7, 1, None)


def test_a_connection_does(base: Base) -> None:
    """Without the ORM, begun at once or as one goes."""
    with base.engine.begin() as connection:
        assert execution().record(connection)
    with base.engine.connect() as connection:
        assert execution("other").record(connection)
        connection.commit()
    with base.engine.connect() as connection:
        assert execution("given up").record(connection)
    for entry, recorded in {"nightly": True, "other": True, "given up": False}.items():
        with base.engine.begin() as connection:
            assert execution(entry).record(connection, skip=True) is not recorded


def test_a_refused_transaction_stays_usable(base: Base) -> None:
    """It can go on, and commit what else it writes."""
    write(base, execution(), "first")
    with Session(base.engine) as session, session.begin():
        with pytest.raises(WindowRecorded):
            execution().record(session)
        session.execute(notes.insert().values(text="all the same"))
    assert base.written() == ["first", "all the same"]


# -- at the same time


def race(base: Base, first_ends: Callable[[Session], None], **options: Any) -> Any:
    """Two executions at once. The second has looked at the database before the first ends; returns what it got."""
    began = threading.Event()
    engine = base.engine.execution_options(**options)

    def second() -> Any:
        try:
            with Session(engine) as session, session.begin():
                if base.engine.dialect.name != "sqlite":  # one that has read could never write there
                    session.execute(sa.select(notes)).all()
                began.set()
                return execution(fence=2).record(session)
        except (WindowRecorded, DBAPIError) as exc:
            return exc

    with ThreadPoolExecutor(1) as pool, Session(engine) as session:
        session.begin()
        assert execution(fence=1).record(session, result="of the first")
        answer = pool.submit(second)
        assert began.wait(60)
        base.wait_blocked(done=answer.done)
        first_ends(session)
        return answer.result(60)


def test_the_second_waits_and_is_refused(base: Base) -> None:
    """While the first's transaction is open nobody knows."""
    assert isinstance(race(base, Session.commit), WindowRecorded)


def test_the_second_waits_and_goes_on(base: Base) -> None:
    """If the first gives up."""
    assert race(base, Session.rollback) is True


ISOLATION = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("kind", databases("postgres", "mariadb"))
def test_isolation(new_base: Callable[..., Base], kind: str, level: str) -> None:
    """A snapshot that is older than the row is refused, or fails as the database has it; never does it pass for new."""
    base = new_base(kind)
    answer = race(base, Session.commit, isolation_level=level)
    if kind == "postgres" and level != "READ COMMITTED":
        assert isinstance(answer, DBAPIError)
        assert answer.orig.sqlstate == "40001"  # serialization_failure
    else:
        assert isinstance(answer, WindowRecorded)
        assert answer.result == "of the first"  # also where the snapshot is older than that row
    with Session(base.engine) as session, pytest.raises(WindowRecorded):  # tried once more
        execution().record(session)


@pytest.mark.parametrize("kind", databases("mariadb"))
def test_a_snapshot_of_mariadb_that_fails(new_base: Callable[..., Base], kind: str) -> None:
    """With innodb_snapshot_isolation, from 11.6 on the default, the error is the database's."""
    base = new_base(kind, connect_args={"init_command": "SET SESSION innodb_snapshot_isolation = ON"})
    answer = race(base, Session.commit, isolation_level="REPEATABLE READ")
    assert isinstance(answer, WindowRecorded) or (isinstance(answer, DBAPIError) and answer.orig.args[0] == 1020)


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("kind", databases("postgres", "mariadb"))
@pytest.mark.long
def test_many_at_once(new_base: Callable[..., Base], kind: str, level: str) -> None:
    """Of eight executions of each of forty windows, some of which give up, one commits; nobody is refused too early."""
    base = new_base(kind, isolation_level=level, pool_size=8)
    refused_early = []

    def body(job: tuple[int, int]) -> None:
        number, turn = job
        while True:
            try:
                with Session(base.engine) as session, session.begin():
                    execution(f"entry {number}", fence=turn).record(session)
                    session.execute(notes.insert().values(text=f"{number}"))
                    if turn % 2 == 0 and number % 3 == 0:
                        session.rollback()
                    return
            except WindowRecorded:
                if str(number) not in base.written():
                    refused_early.append(job)
                return
            except DBAPIError as exc:  # deadlocks and serialization failures: once more
                if not {"40001", "40P01", 1213, 1020} & {getattr(exc.orig, "sqlstate", None), exc.orig.args[0]}:
                    raise

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(body, [(number, turn) for number in range(40) for turn in range(8)]))
    assert Counter(base.written()) == {str(number): 1 for number in range(40)}
    assert not refused_early


# -- results and steps


def test_the_result_of_before(base: Base) -> None:
    """What was recorded comes back as it was, also what was added at the end of the transaction."""
    write(base, execution(), "first", result={"invoices": 12})
    with pytest.raises(WindowRecorded) as found:
        write(base, execution(), "second", result={"invoices": 13})
    assert found.value.result == {"invoices": 12}
    assert (found.value.window.entry, found.value.step) == ("nightly", "")
    assert found.value.recorded_at == base.rows()[0].recorded_at

    longest = ["ä" * 10_000, None, 1.5]
    with Session(base.engine) as session, session.begin():
        first = execution("other")
        assert first.record(session)
        assert first.record(session, result=longest)
    with pytest.raises(WindowRecorded) as found, Session(base.engine) as session:
        execution("other").record(session)
    assert found.value.result == longest


def test_steps_are_apart(base: Base) -> None:
    """Each transaction of a body has a step of its own; what is done is skipped."""
    first = execution()
    assert write(base, first, "loaded", step="load")
    second = execution()
    assert not write(base, second, "loaded again", step="load", skip=True)
    assert write(base, second, "sent", step="send", skip=True)
    assert base.written() == ["loaded", "sent"]


def test_a_second_transaction_needs_a_step(base: Base) -> None:
    """An execution that records the same step in another transaction has forgotten something: it isn't passed over."""
    first = execution()
    write(base, first, "first")
    for skip in (False, True):
        with pytest.raises(RecordError, match=r"step=''\): found recorded by an earlier transaction of this same exec"):
            write(base, first, "second", skip=skip)
    assert base.written() == ["first"]


def test_twice_in_one_transaction(base: Base) -> None:
    """The second call finds the first's row, and goes on; in a savepoint too."""
    first = execution()
    with Session(base.engine) as session, session.begin():
        assert first.record(session)
        assert first.record(session)
        with session.begin_nested():
            assert first.record(session, result="known")
    assert [row.result for row in base.rows()] == ['"known"']


def test_two_databases(new_base: Callable[..., Base]) -> None:
    """A body may record in each, by the same step: they are transactions beside each other."""
    first = execution()
    with Session(new_base().engine) as one, Session(new_base().engine) as other, one.begin(), other.begin():
        for session in (one, other, one, other):
            assert first.record(session)


@pytest.mark.parametrize("step", ["", "another"])
@pytest.mark.parametrize(
    "through", [lambda session: session, lambda session: session.connection()], ids=["orm", "core"]
)
def test_no_row_in_a_savepoint(base: Base, through: Callable[[Session], Any], step: str) -> None:
    """It would go with the savepoint, while what else is written commits. In the transaction around it there is one."""
    first = execution()
    with Session(base.engine) as session, session.begin():
        if step:
            first.record(session)
        with (
            session.begin_nested(),
            pytest.raises(RecordError, match=r"found a savepoint, .* before the nested atomic"),
        ):
            first.record(through(session), step)
        assert first.record(session, step)
    assert [row.step for row in base.rows()] == ["", step][not step :]


def test_a_session_of_a_test_suite(base: Base) -> None:
    """One that is to live in a savepoint has its transaction there, and none in that."""
    with base.engine.connect() as connection, connection.begin():
        options = {"bind": connection, "join_transaction_mode": "create_savepoint"}
        for session in (Session(**options), scoped_session(sessionmaker(**options))):
            first = execution(str(session))
            with session.begin_nested(), pytest.raises(RecordError, match="found a savepoint"):
                first.record(session)
            assert first.record(session)
            session.commit()


def test_a_retry_within_the_body(base: Base) -> None:
    """A transaction that is tried again isn't a second one; if another was first meanwhile, it is refused."""
    first, other = execution(), execution("other")
    for each in (first, other):
        give_up(base, each)
    assert write(base, first, "tried again")
    assert write(base, execution("other"), "another")
    with pytest.raises(WindowRecorded):
        write(base, other, "first")
    assert base.written() == ["tried again", "another"]


# -- what a window is


HOSTILE = [
    "a", "A", "a ", " a", "ä", "a\u0308", "\N{PILE OF POO}", "ß", "ss", "a\0", "a\0b", "\ud800", "a\nb",
    "%s %(id)s :id", "x" * 300, "x" * 301, "é" * 30_000, "'; DROP TABLE once_effects; --",
]  # fmt: skip


def test_names_that_fold_are_apart(base: Base) -> None:
    """Cases, trailing spaces, length, what an encoding can't have: each name is an entry of its own."""
    for entry in HOSTILE:
        assert write(base, execution(entry), "once"), entry
    for entry in HOSTILE:
        assert not write(base, execution(entry), "twice", skip=True), entry
    for step in ("a", "A", "a ", "ä", "%s", ":id", "x" * 100):
        assert write(base, execution(), "once", step=step), step


def test_kinds_of_windows_are_apart(sqlite: Base) -> None:
    """An entry, a key of once() and a call by the same name at the same time."""
    entry = execution()
    for other in (entry, replace(entry, keyed=True), replace(entry, scheduled=False)):
        assert write(sqlite, other, "once")
    starts = [START, "2026-11-22T02:00Z"]
    assert [write(sqlite, execution(start=start), "once", skip=True) for start in starts] == [False, True]
    # A redelivered call begins anew; its task id is the same.
    call = replace(execution(start=starts[1]), scheduled=False)
    assert not write(sqlite, call, "twice", skip=True)


# -- what is refused


def test_outside_of_a_transaction(base: Base) -> None:
    """Where each statement commits the row would stand alone: nothing is written."""
    engine = base.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(RecordError, match="found a connection in AUTOCOMMIT, whose"):
        execution().record(connection)
    with Session(engine) as session, pytest.raises(RecordError, match=r"use 'with Session\.begin\(\) as session'"):
        execution().record(session)
    with base.engine.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(RecordError, match="AUTOCOMMIT"):
            execution().record(alone)
    assert not base.rows()


@pytest.mark.parametrize("kind", databases("sqlite", "postgres", "mariadb"))
def test_a_driver_that_commits_by_itself(new_base: Callable[..., Base], kind: str) -> None:
    """SQLAlchemy doesn't know of it."""
    base = new_base(kind, connect_args={"isolation_level": None} if kind == "sqlite" else {"autocommit": True})
    with Session(base.engine) as session, pytest.raises(RecordError, match="AUTOCOMMIT"):
        execution().record(session)


def test_a_listener_that_begins(new_base: Callable[..., Base]) -> None:
    """SQLAlchemy's own recipe for SQLite: the driver begins nothing, a listener does."""
    base = new_base(connect_args={"isolation_level": None})
    sa.event.listen(base.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    assert write(base, execution(), "once")
    with base.engine.connect() as connection:
        assert execution("other").record(connection)
    assert len(base.rows()) == 1


def test_without_the_table(base: Base) -> None:
    """One line says what makes it."""
    base.drop_tables()
    words = r"^found no table once_effects in the database; create it with metadata\.create_all\(\) or Alembic \(.*\)$"
    with Session(base.engine) as session, pytest.raises(RecordError, match=words):
        execution().record(session)


@pytest.mark.parametrize(
    ("database", "options", "message"),
    [
        ("load", {}, r"record\('load'\): found a text, .*; in Django name the argument: record\(step='load'\)"),
        (sa.create_engine("sqlite://"), {}, "found Engine, expected a Session or Connection of SQLAlchemy"),
        (None, {}, r"record\(using='default'\): found no (database of Django|transaction)"),
        (..., {"using": "other"}, "found beside a session"),
        (..., {"step": 7}, "step: found 7, expected a text of at most 100 characters"),
        (..., {"step": "x" * 101}, "step: found 'xxx"),
        (..., {"step": "a\nb"}, "step: found 'a"),
        (..., {"result": object()}, "result: found <object .*, expected what JSON can hold"),
        (..., {"result": float("nan")}, "result: found nan"),
        (..., {"result": "x" * 70_000}, "result: found 70,002 bytes of JSON, expected at most 65,535"),
    ],
)
def test_wrong_arguments(sqlite: Base, database: Any, options: dict[str, Any], message: str) -> None:
    """Each is named, with what was found and expected; nothing is written."""
    with Session(sqlite.engine) as session, pytest.raises(RecordError, match=message):
        execution().record(session if database is ... else database, **options)
    assert not sqlite.rows()


def test_a_database_that_is_not_known(sqlite: Base) -> None:
    """Another one may have other rules."""
    with Session(sqlite.engine) as session:
        session.connection().dialect.name = "oracle"
        with pytest.raises(RecordError, match="found 'oracle', expected one of postgresql, mysql, mariadb, sqlite"):
            execution().record(session)
        session.connection().dialect.name = "sqlite"


@pytest.mark.parametrize("stored", ["{", "'; --", "[" * 60_000], ids=["{", "text", "deep"])
def test_a_result_that_nobody_wrote(base: Base, stored: str) -> None:
    """A row that was edited says so in one line, and isn't taken for a result."""
    write(base, execution(), "once", result=1)
    with base.engine.begin() as connection:
        connection.execute(effects.update().values(result=stored, recorded_at="now\n"))
    with pytest.raises(RecordError, match=r"^record, the row's result: found .*, expected JSON as record has written"):
        write(base, execution(), "twice")
    assert base.written() == ["once"]


# -- schemas, async


@pytest.mark.parametrize("kind", databases("postgres"))
def test_another_schema(new_base: Callable[..., Base], kind: str) -> None:
    """The setting says where the table is."""
    base, metadata = new_base(kind), sa.MetaData()
    effects_table(metadata, "Jobs")
    with base.engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema("Jobs"))
    metadata.create_all(base.engine)

    def recorded() -> bool:
        of_jobs = Effects(lambda: Settings(effects_schema="Jobs"), running=True)
        made = Window("nightly", execution().start, None, _context=of_jobs)
        with base.engine.begin() as connection:
            return made.record(connection, skip=True)

    assert [recorded(), recorded()] == [True, False]
    assert not base.rows(), "nor in the one that is asked first"
    metadata.drop_all(base.engine)
    with pytest.raises(RecordError, match=r"found no table Jobs\.once_effects"):
        recorded()


@pytest.mark.parametrize("kind", databases("postgres"))
def test_an_async_session(new_base: Callable[..., Base], kind: str) -> None:
    """Through run_sync; what is given as it is says so."""
    base = new_base(kind)

    async def body(of: Window) -> None:
        engine = create_async_engine(base.url)
        try:
            async with AsyncSession(engine) as session, session.begin():
                with pytest.raises(RecordError, match=r"found AsyncSession, .*await session\.run_sync\(self\.window\."):
                    of.record(session)
                await session.run_sync(of.record)
                await session.execute(notes.insert().values(text="async"))
            async with engine.begin() as connection:
                await connection.run_sync(execution().record, step="")
        finally:
            await engine.dispose()

    with pytest.raises(WindowRecorded):
        asyncio.run(body(execution()))
    assert base.written() == ["async"]


def test_the_table_is_as_it_is_declared(base: Base) -> None:
    """Alembic has nothing to change: columns, key and index are those of the metadata."""
    inspector = sa.inspect(base.engine)
    assert [column["name"] for column in inspector.get_columns("once_effects")] == list(effects.columns.keys())
    assert inspector.get_pk_constraint("once_effects")["constrained_columns"] == ["id"]
    assert [index["column_names"] for index in inspector.get_indexes("once_effects")] == [["recorded_at"]]
