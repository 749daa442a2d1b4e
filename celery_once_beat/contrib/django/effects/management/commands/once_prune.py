"""``manage.py once_prune --older-than 90d``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, transaction

from celery_once_beat.errors import OnceError
from celery_once_beat.features.effects.in_django import transaction_of
from celery_once_beat.features.effects.prune import prune, read_age
from celery_once_beat.features.effects.statements import Transaction


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """As ``celery once prune`` does."""

    help = "Delete rows of recorded windows that are older than that, in batches."

    def add_arguments(self, parser: Any) -> None:
        """As ``celery once prune``, and Django's --database."""
        parser.add_argument("--older-than", required=True, metavar="AGE", help="Like 90d; a week is 1w.")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, metavar="ALIAS", help="Default: %(default)s.")

    def handle(self, *_: object, older_than: str, database: str, **options: Any) -> None:
        """Print how many are deleted."""

        @contextmanager
        def open_transaction() -> Iterator[Transaction]:
            with transaction.atomic(using=database):
                yield transaction_of(database)

        try:
            number = sum(prune(open_transaction, read_age(older_than, current_app, self.stderr.write)))
        except OnceError as exc:
            raise CommandError(str(exc)) from exc
        if options["verbosity"]:
            self.stdout.write(f"deleted: {number}")
