"""The transaction of a Django connection, within ``transaction.atomic()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_once_beat.errors import RecordError

from .statements import TABLE, Answer, Statements, Transaction, lacks_table, no_table, statements_for


def transaction_of(using: str) -> Transaction:
    """Return the transaction in which the connection ``using`` is; raises RecordError if it is in none."""
    try:
        from django.db import connections  # noqa: PLC0415  # it may not be installed

        connection = connections[using]
    except Exception as exc:
        # ImportError, or what Django raises where it isn't set up; an alias that it doesn't know.
        raise RecordError(
            f"record(using={using!r}): found no database of Django ({exc}); with SQLAlchemy give the Session or "
            "Connection"
        ) from exc
    statements = statements_for(connection.vendor, TABLE, "%({})s".format)
    # As Django's durable=True: the atomic() that a TestCase has around a test isn't the caller's.
    if all(block._from_testcase for block in connection.atomic_blocks):  # noqa: SLF001  # as Django does
        raise RecordError(
            f"record(using={using!r}): found no transaction, so that the row would commit by itself, expected one; use "
            f"'with transaction.atomic({'' if using == 'default' else repr(using)}):'"
        )
    return _Transaction(connection, statements)


class _Transaction(Transaction):
    def __init__(self, connection: Any, statements: Statements) -> None:
        from django.db import DatabaseError  # noqa: PLC0415  # as above

        super().__init__(statements)
        self._connection = connection
        self._errors = DatabaseError

    def send(self, statement: str, values: Mapping[str, Any]) -> Answer:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, dict(values))
                return Answer(cursor.rowcount, list(cursor.fetchall()) if cursor.description else [])
        except self._errors as exc:
            if not lacks_table(exc.__cause__):
                raise
            advice = "add 'celery_once_beat.contrib.django.effects' to INSTALLED_APPS, and migrate"
            if self._connection.alias != "default":
                advice += f" with --database {self._connection.alias}"
            raise no_table(TABLE, advice) from exc

    def in_savepoint(self) -> bool:
        """Whether it is one of an atomic(). Within a TestCase's, the first atomic() stands for the transaction."""
        blocks = self._connection.atomic_blocks
        # The outermost block has no savepoint, unless autocommit was off before it.
        inner = zip(reversed(blocks), reversed(self._connection.savepoint_ids), strict=False)
        own = [savepoint for block, savepoint in inner if not block._from_testcase]  # noqa: SLF001  # as Django does
        in_test = any(block._from_testcase for block in blocks)  # noqa: SLF001
        return any(own[:-1] if in_test else own)

    def mark(self) -> object:
        """Return a hook that is there until the transaction, or the savepoint in which this is called, has ended."""

        def recorded() -> None:
            """Do nothing: it only marks the transaction."""

        self._connection.on_commit(recorded)
        return recorded

    def is_marked(self, mark: object) -> bool:
        return any(mark in hook for hook in self._connection.run_on_commit)
