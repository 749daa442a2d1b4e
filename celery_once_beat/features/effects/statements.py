"""The table of recorded windows: its columns, and the SQL for each database.

Instants are text, as in keys, headers and logs: their order is the order of time, in any collation, and no database or
driver converts them, or cuts off their microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from celery_once_beat.errors import RecordError
from celery_once_beat.wording import expect

TABLE = "once_effects"
#: As SQLAlchemy and Django name them. MariaDB is Django's mysql.
DATABASES = ("postgresql", "mysql", "mariadb", "sqlite")
#: Rows that are deleted in one transaction.
BATCH = 1000
#: PostgreSQL's SQLSTATE and MySQL's number for a table that isn't there.
_UNKNOWN_TABLE = ("42P01", 1146)


class Row(NamedTuple):
    """One row. ``id`` is a digest of what names the window and the step; ``entry`` may be cut off."""

    id: str
    entry: str
    start: str
    step: str
    fence: int | None
    attempt: int
    recorded_at: str
    #: Tells this execution from others.
    execution: str
    #: JSON.
    result: str | None


class Recorded(NamedTuple):
    """What is read of a row."""

    execution: str
    result: str | None
    recorded_at: str


class Answer(NamedTuple):
    """What a statement has done: how many rows it has changed, and those it has found."""

    changed: int
    rows: list[Any]


class Statements:
    """The SQL for one database; raises RecordError for one that isn't supported.

    ``mark`` writes a parameter, as the driver's layer wants it.
    """

    def __init__(self, database: str, table: str, mark: Callable[[str], str]) -> None:
        expect("record", database, database in DATABASES, f"one of {', '.join(DATABASES)}", RecordError)
        locks = database in ("mysql", "mariadb")
        names, values = ", ".join(Row._fields), ", ".join(map(mark, Row._fields))
        row = f"{table} ({names}) VALUES ({values})"
        # Where the row is there, or comes while this waits, neither ends the transaction: no row is inserted.
        self.insert = f"INSERT IGNORE INTO {row}" if locks else f"INSERT INTO {row} ON CONFLICT (id) DO NOTHING"
        # MySQL's snapshot may be older than the row for which the INSERT has waited; a locking read sees it.
        lock = " LOCK IN SHARE MODE" if locks else ""
        of_row = f"WHERE id = {mark('id')}"
        self.find = f"SELECT {', '.join(Recorded._fields)} FROM {table} {of_row}{lock}"  # noqa: S608  # parameters
        self.set_result = f"UPDATE {table} SET result = {mark('result')} {of_row}"  # noqa: S608
        older = f"FROM {table} WHERE recorded_at <= "
        self.batch_end = f"SELECT recorded_at {older}{mark('limit')} ORDER BY recorded_at LIMIT 1 OFFSET {BATCH - 1}"
        self.delete = f"DELETE {older}{mark('until')}"


#: Each database's is made once.
statements_for = lru_cache(maxsize=16)(Statements)


class Transaction(ABC):
    """The caller's transaction."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements

    def insert(self, row: Row) -> bool:
        """Insert it; returns False if it is there. Waits for another transaction that has inserted it."""
        return self.send(self.statements.insert, row._asdict()).changed == 1

    def set_result(self, row: Row) -> None:
        """Write the result to the row that this transaction has inserted."""
        self.send(self.statements.set_result, {"id": row.id, "result": row.result})

    def find(self, id_: str) -> Recorded | None:
        """Read a row; None if it isn't there."""
        found = self.send(self.statements.find, {"id": id_}).rows
        return Recorded(*found[0]) if found else None

    @abstractmethod
    def send(self, statement: str, values: Mapping[str, Any]) -> Answer:
        """Execute a statement. Raises RecordError where the table isn't there."""

    @abstractmethod
    def in_savepoint(self) -> bool:
        """Whether a part of it is open that can be rolled back while the rest commits."""

    @abstractmethod
    def mark(self) -> object:
        """Return what :meth:`is_marked` knows this transaction by."""

    @abstractmethod
    def is_marked(self, mark: object) -> bool:
        """Whether ``mark`` is of this transaction, and not of an earlier one."""


def lacks_table(error: Any) -> bool:
    """Whether a driver's error says that the table isn't there."""
    codes = getattr(error, "sqlstate", None), getattr(error, "pgcode", None), next(iter(error.args), None)
    return any(code in _UNKNOWN_TABLE for code in codes) or str(error).startswith("no such table")


def no_table(table: str, advice: str) -> RecordError:
    """Return the error for a table that isn't there."""
    return RecordError(f"found no table {table} in the database; {advice}")
