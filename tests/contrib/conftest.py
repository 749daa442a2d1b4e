"""Databases with the tables of django-celery-beat, made once a session and copied for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ledger import Ledger
from processes import Processes
from servers import MariaServer, PostgresServer
from shops import Shop, copy_of, mariadb, migrate, new_database, postgres, sqlite


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "db.sqlite3"
    migrate(sqlite(path))
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's server, with the tables in its database ``template``."""
    with PostgresServer.start() as server:
        server.execute("CREATE DATABASE template")
        migrate(postgres(server, "template"))
        yield server


@pytest.fixture(scope="session")
def maria_server() -> Iterator[MariaServer]:
    """The session's server. It has no templates: a database has no tables yet."""
    with MariaServer.start() as server:
        yield server


@pytest.fixture
def new_shop(
    request: pytest.FixtureRequest, procs: Processes, ledger: Ledger, redis_url: str, tmp_path: Path
) -> Iterator[Callable[..., Shop]]:
    """``new_shop("sqlite" | "postgres" | "mariadb", timeout=20, more={}, **settings)``: an empty database."""
    made: list[Shop] = []

    def make(
        kind: str = "sqlite", timeout: int = 20, more: dict[str, object] | None = None, **settings: object
    ) -> Shop:
        if kind == "sqlite":
            database = copy_of(request.getfixturevalue("sqlite_template"), tmp_path, timeout)
        elif kind == "mariadb":
            server, name = request.getfixturevalue("maria_server"), f"shop_{uuid.uuid4().hex[:8]}"
            server.execute(f"CREATE DATABASE {name}")
            database = mariadb(server, name)
        else:
            database = new_database(request.getfixturevalue("postgres_server"), "template")
        shop = Shop(procs, ledger, redis_url, tmp_path)
        made.append(shop)
        shop.use({**database, **(more or {})}, **settings)
        return shop

    yield make
    procs.end()
    for shop in made:
        shop.orm.close()
        shop.store.close()


@pytest.fixture
def shop(new_shop: Callable[..., Shop]) -> Shop:
    """A project on SQLite."""
    return new_shop()


@pytest.fixture(scope="session")
def django_here(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[dict[str, object]]:
    """Django in this process, on SQLite; without DJANGO_SETTINGS_MODULE, by which Celery would change every app."""
    import django
    from django.conf import settings
    from django.db import connections

    database = copy_of(sqlite_template, tmp_path_factory.mktemp("here"))
    settings.configure(
        SECRET_KEY="tests", USE_TZ=True, TIME_ZONE="Europe/Berlin", INSTALLED_APPS=["django_celery_beat"],
        DATABASES={"default": database}, DEFAULT_AUTO_FIELD="django.db.models.AutoField", LOGGING_CONFIG=None,
    )  # fmt: skip
    django.setup()
    yield database
    connections.close_all()


@pytest.fixture
def rows(django_here: dict[str, object]) -> Iterator[type]:
    """The model of rows, of which there are none."""
    from django_celery_beat.models import PeriodicTask

    yield PeriodicTask
    PeriodicTask.objects.all().delete()
