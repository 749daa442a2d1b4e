"""Databases of each kind: a server a session, a database of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import Base
from servers import databases


@pytest.fixture
def new_base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Base]]:
    """``new_base("postgres", **options of create_engine)``: a database with the tables."""
    made: list[Base] = []

    def make(kind: str = "sqlite", **options: object) -> Base:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
        elif kind == "postgres":
            server = request.getfixturevalue("postgres_server")
            url = f"postgresql+psycopg://once@127.0.0.1:{server.port}/{server.new_database()}"
        else:
            server = request.getfixturevalue("maria_server")
            url = f"mysql+pymysql://root@127.0.0.1:{server.port}/{server.new_database()}"
        base = Base(sa.create_engine(url, **options))
        made.append(base)
        base.make_tables()
        return base

    yield make
    for base in made:
        base.engine.dispose()


@pytest.fixture(params=databases("sqlite", "postgres", "mariadb"))
def base(request: pytest.FixtureRequest, new_base: Callable[..., Base]) -> Base:
    """A database, once of each kind."""
    return new_base(request.param)


@pytest.fixture
def sqlite(new_base: Callable[..., Base]) -> Base:
    return new_base()
