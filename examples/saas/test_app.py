"""The service's own tests: no Redis to start, no broker, no process."""

from datetime import datetime, timedelta, timezone

import pytest
from fastapi import HTTPException
from sqlalchemy import create_engine, select
from sqlalchemy.pool import StaticPool

from celery_once_beat.testing import executing, window
from examples.saas import app as saas
from examples.saas.app import Session, Tenant, Wish, delete_tenant, get_tenant, put_tenant, schedules

DAILY = Wish(line="30 8 * * *", zone="Europe/Berlin", users=["ann", "bob"])


def push_in(minutes):
    now = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    with executing(saas.push_changed, window("push", now, last_done=now - timedelta(minutes=1))):
        saas.push_changed()


def in_redis():
    return schedules.get_many(["tenants/acme"])["tenants/acme"]


def line_in_redis():
    return in_redis().as_json()["schedule"]["line"]


@pytest.fixture(autouse=True)
def database(monkeypatch):
    engine = create_engine("sqlite://", poolclass=StaticPool)
    monkeypatch.setattr(saas, "engine", engine)
    monkeypatch.setitem(saas.celery.conf, "task_always_eager", True)  # children run at once
    Session.configure(bind=engine)
    saas.create_tables()
    yield
    engine.dispose()


def test_a_tenant_gets_a_report_and_each_user_one_mail(once_beat):
    once_beat(saas.celery, "2026-11-21T06:00Z")
    put_tenant("acme", DAILY)
    (sent,) = [each for each in once_beat.until("2026-11-21T09:00Z") if each.task == "saas.report"]
    for _ in range(2):  # as if the first worker had died at its end
        sent.run()
    assert get_tenant("acme")["reports"] == ["2026-11-21 07:30:00"]
    assert sorted(get_tenant("acme")["mails"]) == ["ann", "bob"]


def test_what_redis_lost_comes_back_at_night(once_beat):
    once_beat(saas.celery, "2026-11-21T06:00Z")
    put_tenant("acme", DAILY)
    schedules.delete("tenants/acme")
    schedules.set("tenants/by hand", task="saas.report", schedule=60, args=("nobody",))
    (sent,) = [each for each in once_beat.until("2026-11-22T03:00Z") if each.entry == "reconcile"]
    sent.run()
    assert schedules.names("tenants/") == ["tenants/acme"]


def test_a_handler_that_dies_behind_its_commit(once_beat, monkeypatch):
    once_beat(saas.celery, "2026-11-21T06:00Z")
    with monkeypatch.context() as patch:
        patch.setattr(saas, "push_soon", lambda name: None)
        put_tenant("acme", DAILY)
    assert get_tenant("acme")["next"] == []
    next(each for each in once_beat.until("2026-11-21T06:02Z") if each.entry == "push").run()
    assert f"{get_tenant('acme')['next'][0]:%d %H:%M}" == "21 07:30"


def test_a_tenant_who_leaves(once_store):
    put_tenant("acme", DAILY)
    delete_tenant("acme")
    assert schedules.names("tenants/") == []


def test_a_wrong_wish_is_refused(once_store):
    with pytest.raises(HTTPException, match="422"):
        put_tenant("acme", Wish(line="30 25 * * *", users=["ann"]))
    with Session() as session:
        assert session.scalars(select(Tenant)).all() == []


def test_a_row_that_is_refused_stops_no_other(once_store, caplog):
    good, now = {"line": "30 8 * * *", "zone": "UTC", "users": "ann", "state": "active"}, datetime.now(timezone.utc)
    rows = {"a\nb": good, "b": {**good, "line": "30 25 * * *"}, "c": {**good, "users": "ann " * 99_999}}
    with Session.begin() as session:
        session.add_all(Tenant(name=name, changed=now, **row) for name, row in rows.items())
    put_tenant("acme", DAILY)
    saas.reconcile()
    assert schedules.names("tenants/") == ["tenants/acme", "tenants/c"]
    assert [each.getMessage() for each in caplog.records] == [
        "not pushed: 'tenants/a\\nb'",
        "not pushed: 'tenants/b'",
    ]


def test_a_handler_that_stalled_brings_no_old_line_back(once_store, monkeypatch):
    def stalled(*args, **given):
        stall.undo()
        put_tenant("acme", Wish(line="30 10 * * *", users=["ann"]))  # another handler, meanwhile
        schedules.set(*args, **given)
        raise SystemExit("it dies")

    with monkeypatch.context() as stall:
        stall.setattr(schedules, "set", stalled)
        with pytest.raises(SystemExit):
            put_tenant("acme", DAILY)
    assert line_in_redis() == "30 8 * * *"
    push_in(minutes=9)
    assert line_in_redis() == "30 10 * * *"


def test_a_push_leaves_old_rows_to_the_night(once_store):
    put_tenant("acme", DAILY)
    schedules.delete("tenants/acme")
    push_in(minutes=12)
    assert schedules.names("tenants/") == []
    saas.reconcile()
    assert line_in_redis() == "30 8 * * *"


def test_a_tenant_who_pauses_keeps_the_schedule(once_store):
    for paused in (True, False):
        put_tenant("acme", Wish(line="30 8 * * *", users=["ann"], paused=paused))
        assert in_redis().paused == paused
