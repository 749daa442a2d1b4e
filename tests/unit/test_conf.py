"""``app.conf`` knows this package's settings: an unset one has its default, and nothing else changes for it."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest
from celery import Celery
from celery.bin.celery import celery as command
from click.testing import CliRunner

from celery_once_beat.settings import Settings

DERIVED = {"redis_url", "redis_options", "key_prefix", "heartbeat_file"}


class _Bare:
    broker_url = "redis://localhost"
    once_beat_lease = 7


class _Old:
    BROKER_URL = "redis://localhost"
    CELERY_RESULT_BACKEND = "redis://localhost"
    once_beat_lease = 7


class _Django:
    CELERY_BROKER_URL = "redis://localhost"
    CELERY_ONCE_BEAT_LEASE = 7
    ONCE_BEAT_GRACE = 5
    CELERY_BEAT_CRON_STARTING_DEADLINE = 120


def app_of(source: Any = None, namespace: str | None = None) -> Celery:
    app = Celery("tests", set_as_current=False)
    if source is not None:
        app.config_from_object(source, namespace=namespace)
    return app


@pytest.mark.parametrize(("source", "namespace"), [(None, None), (_Bare, None), (_Old, None), (_Django, "CELERY")])
def test_an_unset_setting_can_be_read(source: Any, namespace: str | None) -> None:
    """It is the default, None where that follows the app's other settings; one that is set is what was set."""
    conf = app_of(source, namespace).conf
    assert conf.once_beat_lease == (7 if source else 30.0)
    assert conf.once_beat_max_attempts == 3
    assert {conf[f"once_beat_{name}"] for name in DERIVED} == {None}
    ours = {f.name for f in fields(Settings)} - {"cron_starting_deadline"}  # that one is Celery's
    assert {f.name for f in fields(Settings) if f"once_beat_{f.name}" in conf} == ours
    with pytest.raises(AttributeError):
        _ = conf.once_beat_leese


def test_a_default_is_no_setting() -> None:
    """What follows the app's other settings does so still, unless it is set, to None too."""
    settings = Settings.from_app(app_of(_Django, "CELERY"))
    assert (settings.lease, settings.cron_starting_deadline, settings.key_prefix) == (7.0, 120.0, "once:")


def test_reports_and_pickles_have_what_was_set() -> None:
    """``celery report`` and an app that is pickled have no line of ours but those that the app has set."""
    app = app_of()
    app.conf.update(broker_url="redis://localhost", once_beat_lease=7)
    app.set_current()
    shown = CliRunner().invoke(command, ["report"], obj=None)
    for text in (app.conf.humanize(), app.bugreport(), shown.output):
        assert text.count("once_beat") <= 1, text
    assert "once_beat_lease: 7" in app.conf.humanize()
    assert pickle.loads(pickle.dumps(app)).conf.once_beat_lease == 7
