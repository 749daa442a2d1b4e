"""The table in which ``self.window.record(session)`` writes, for SQLAlchemy 1.4 and 2: docs/effects.md.

``metadata.create_all(engine)`` makes it, and Alembic finds it with ``target_metadata = [Base.metadata, metadata]``.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

from celery_once_beat.features.effects.in_sqlalchemy import prune_with as prune
from celery_once_beat.features.effects.statements import TABLE

__all__ = ("effects", "effects_table", "metadata", "prune")


def effects_table(metadata: MetaData, schema: str | None = None) -> Table:
    """Add the table to ``metadata``, your own for example. The setting ``once_beat_effects_schema`` has its schema."""
    return Table(
        TABLE,
        metadata,
        Column("id", String(64), primary_key=True),  # SHA-256, in hex: names are too long for a key, and fold
        Column("entry", String(255), nullable=False),
        Column("start", String(27), nullable=False),
        Column("step", String(100), nullable=False),
        Column("fence", BigInteger),
        Column("attempt", Integer, nullable=False),
        Column("recorded_at", String(27), nullable=False, index=True),
        Column("execution", String(32), nullable=False),
        Column("result", Text),
        schema=schema,
        mysql_engine="InnoDB",  # others have no transactions
        mysql_charset="utf8mb4",  # names are any text
    )


#: Holds only our table, in the connection's own schema.
metadata = MetaData()
effects = effects_table(metadata)
