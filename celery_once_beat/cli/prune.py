"""``celery once prune``: old rows of the table in which ``self.window.record(session)`` writes."""

from __future__ import annotations

from functools import partial

import click

from celery_once_beat.errors import SettingError
from celery_once_beat.features.effects.prune import read_age

from .context import Project, fail, needs_extra, pass_project


@click.command()
@click.option("--older-than", metavar="AGE", required=True, help="Like 90d; a week is 1w.")
@pass_project(needs_store=False)
def prune(project: Project, older_than: str) -> None:
    """Delete rows of recorded windows that are older than AGE. Prints how many.

    In batches, each committed by itself. The database is that of once_beat_effects_url, the schema of the table that of
    once_beat_effects_schema. Django projects have a command of their own: manage.py once_prune.
    """
    url = project.settings.effects_url
    if url is None:
        raise SettingError(
            "once_beat_effects_url: not set, expected SQLAlchemy's URL of the database that has the rows; "
            "in Django run 'manage.py once_prune'"
        )
    try:
        age = read_age(older_than, project.app, partial(click.echo, err=True))
    except SettingError as exc:
        fail(str(exc))
    with needs_extra("prune", "sqlalchemy"):
        from celery_once_beat.features.effects.in_sqlalchemy import prune_at
    click.echo(f"deleted: {prune_at(url, age, project.settings.effects_schema)}")
