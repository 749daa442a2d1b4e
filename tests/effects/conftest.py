"""Databases of each kind: a server a session, a database of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import KINDS, Base, new_maria, new_postgres, new_sqlite
from servers import MariaServer, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    with MariaServer.start() as server:
        yield server


@pytest.fixture
def new_base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Base]]:
    """``new_base("postgres", **options of create_engine)``: a database with the tables."""
    made: list[Base] = []

    def make(kind: str = "sqlite", **options: object) -> Base:
        if kind == "postgres":
            url = new_postgres(request.getfixturevalue("postgres"))
        elif kind == "mariadb":
            url = new_maria(request.getfixturevalue("mariadb"))
        else:
            url = new_sqlite(tmp_path)
        base = Base(sa.create_engine(url, **options))
        made.append(base)
        base.make_tables()
        return base

    yield make
    for base in made:
        base.engine.dispose()


@pytest.fixture(params=KINDS)
def base(request: pytest.FixtureRequest, new_base: Callable[..., Base]) -> Base:
    """A database, once of each kind."""
    return new_base(request.param)


@pytest.fixture
def sqlite(new_base: Callable[..., Base]) -> Base:
    return new_base()
