"""Databases with the table of recorded windows, and one for what bodies write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from processes import wait_until

from celery_once_beat.contrib.sqlalchemy import effects, metadata

__all__ = ("START", "Base", "notes")

START = "2026-11-21T02:00Z"

_own = sa.MetaData()
#: What bodies write.
notes = sa.Table("notes", _own, sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.String(64)))

_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


@dataclass
class Base:
    """A database, empty but for its tables."""

    engine: sa.Engine

    @property
    def url(self) -> str:
        return self.engine.url.render_as_string(hide_password=False)

    def make_tables(self) -> None:
        metadata.create_all(self.engine)
        _own.create_all(self.engine)

    def drop_tables(self) -> None:
        metadata.drop_all(self.engine)
        _own.drop_all(self.engine)

    def written(self) -> list[str]:
        """What bodies have committed, in order."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(notes.c.text).order_by(notes.c.id)).scalars())

    def rows(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(effects).order_by(effects.c.recorded_at)))

    def wait_blocked(self, *, done: Callable[[], bool] = lambda: False) -> None:
        """Wait until a transaction waits for another one's row. SQLite can't say it: there the test goes on."""
        query = _WAITING.get(self.engine.dialect.name)
        if query is None:
            return

        def waits() -> bool:
            with self.engine.connect() as connection:
                return done() or bool(connection.execute(sa.text(query)).scalar())

        wait_until(waits, "a transaction waits for the first's row", 60)
