"""The transaction of an SQLAlchemy Session or Connection, 1.4 or 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session, scoped_session

from celery_once_beat.errors import DatabaseUnavailableError, RecordError, SettingError

from .prune import prune
from .statements import TABLE, Answer, Statements, Transaction, lacks_table, no_table, statements_for


def transaction_of(database: object, schema: str | None) -> Transaction:
    """Return the transaction in which ``database`` is; raises RecordError if it would commit by itself."""
    session: Any = database() if isinstance(database, scoped_session) else database
    connection = session.connection() if isinstance(session, Session) else database
    if not isinstance(connection, Connection):
        _refuse(database)
    dialect: Any = connection.dialect
    table = f"{dialect.identifier_preparer.quote(schema)}.{TABLE}" if schema else TABLE
    statements = statements_for(dialect.name, table, ":{}".format)
    if not connection.in_transaction():
        if not hasattr(connection, "commit"):  # SQLAlchemy 1.4's, which commits each statement
            raise _outside("a Connection without a transaction")
        connection.begin()  # as its first statement would
    if _commits_alone(connection):
        raise _outside("a connection in AUTOCOMMIT")
    # A Session that is to live in a savepoint, as in a test suite, has its transaction there.
    lives_in_savepoint = getattr(session, "join_transaction_mode", None) == "create_savepoint"
    return _Transaction(connection, statements, schema, session if lives_in_savepoint else connection)


def prune_at(url: str, older_than: timedelta, schema: str | None) -> int:
    """As :func:`prune_with`, in the database at ``url``; raises SettingError or DatabaseUnavailableError for that."""
    try:
        engine = create_engine(url)
    except (ArgumentError, ImportError) as exc:  # its text has no password
        raise SettingError(f"once_beat_effects_url: found one that SQLAlchemy can't use: {exc}") from exc
    except ValueError:  # its text may have a part of one
        raise SettingError(
            "once_beat_effects_url: found one whose port is no number, expected "
            "database://user:password@host:port/name; in a password write %40 for @"
        ) from None
    try:
        return prune_with(engine, older_than, schema)
    except DBAPIError as exc:
        raise DatabaseUnavailableError(f"the database of once_beat_effects_url: {exc.orig}") from exc
    finally:
        engine.dispose()


def prune_with(engine: Engine, older_than: timedelta, schema: str | None = None) -> int:
    """Delete rows that were recorded longer ago than that, in batches, each committed by itself; return how many.

    ``schema`` is that of the table. Raises RecordError where there is none.
    """

    @contextmanager
    def open_transaction() -> Iterator[Transaction]:
        with engine.begin() as connection:
            yield transaction_of(connection, schema)

    return sum(prune(open_transaction, older_than))


class _Transaction(Transaction):
    def __init__(self, connection: Connection, statements: Statements, schema: str | None, nests: Any) -> None:
        super().__init__(statements)
        self._connection = connection
        self._nests = nests
        self._schema = schema

    def send(self, statement: str, values: Mapping[str, Any]) -> Answer:
        try:
            result: Any = self._connection.execute(text(statement), dict(values))
            return Answer(result.rowcount, list(result) if result.returns_rows else [])
        except DBAPIError as exc:
            if lacks_table(exc.orig):
                table = f"{self._schema}.{TABLE}" if self._schema else TABLE
                advice = "create it with metadata.create_all() or Alembic (celery_once_beat.contrib.sqlalchemy)"
                raise no_table(table, advice) from exc
            raise

    def in_savepoint(self) -> bool:
        return self._nests.in_nested_transaction()  # type: ignore[no-any-return]

    def mark(self) -> object:
        return self._connection.get_transaction()

    def is_marked(self, mark: object) -> bool:
        return mark is self._connection.get_transaction()


def _commits_alone(connection: Connection) -> bool:
    """Whether each statement commits, whatever SQLAlchemy calls a transaction."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    wrapped: Any = getattr(driver, "driver_connection", driver)  # an async one
    if connection.dialect.name == "sqlite":
        # It begins with the first write, unless it was told not to; then a listener may have begun.
        never_begins = getattr(driver, "autocommit", None) is True or driver.isolation_level is None
        return never_begins and not wrapped.in_transaction
    ask = getattr(driver, "get_autocommit", None) or getattr(wrapped, "get_autocommit", None)  # MySQL's drivers
    return bool(ask() if ask else getattr(driver, "autocommit", False))


def _outside(found: str) -> RecordError:
    return RecordError(
        f"record: found {found}, whose row would commit by itself, expected a transaction; use "
        "'with Session.begin() as session' or 'with engine.begin() as connection'"
    )


def _refuse(database: object) -> NoReturn:
    name = type(database).__name__
    if name.startswith(("Async", "async_")):
        how = "await it through its sync one: await session.run_sync(self.window.record)"
    else:
        how = "'with Session.begin() as session', or without an argument in Django's transaction.atomic()"
    raise RecordError(f"record: found {name}, expected a Session or Connection of SQLAlchemy; {how}")
