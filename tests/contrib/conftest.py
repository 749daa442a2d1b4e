"""Databases with the tables of django-celery-beat, made once a session and copied for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import PostgresServer
from shops import Shop, copy_of, mariadb, migrate, postgres, sqlite


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "db.sqlite3"
    migrate(sqlite(path))
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    name = postgres_server.new_database()
    migrate(postgres(postgres_server, name))
    return name


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest) -> Callable[..., dict[str, Any]]:
    """``new_database("sqlite", folder)``: Django's settings for one. MariaDB has no templates: there it is empty."""

    def make(kind: str, folder: Path, timeout: int = 20) -> dict[str, Any]:
        if kind == "sqlite":
            return copy_of(request.getfixturevalue("sqlite_template"), folder, timeout)
        if kind == "mariadb":
            maria = request.getfixturevalue("maria_server")
            return mariadb(maria, maria.new_database())
        template, server = (request.getfixturevalue(name) for name in ("postgres_template", "postgres_server"))
        return postgres(server, server.new_database(f"TEMPLATE {template}"))

    return make


@pytest.fixture
def new_shop(procs, ledger, redis_url, tmp_path, new_database) -> Iterator[Callable[..., Shop]]:
    """``new_shop("sqlite" | "postgres" | "mariadb", timeout=20, more={}, **settings)``: an empty database."""
    made: list[Shop] = []

    def make(kind: str = "sqlite", timeout: int = 20, more: dict[str, Any] | None = None, **settings: object) -> Shop:
        shop = Shop(procs, ledger, redis_url, tmp_path)
        made.append(shop)
        shop.use({**new_database(kind, tmp_path, timeout), **(more or {})}, **settings)
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
