"""A service whose tenants choose when they get a report: rows once in SQL, mails once each, schedules in two stores."""

import logging
import os
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

from celery import Celery
from celery.schedules import crontab
from fastapi import FastAPI, HTTPException, Path
from pydantic import BaseModel
from sqlalchemy import DateTime, ForeignKey, create_engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from celery_once_beat import OnceTask, Schedules
from celery_once_beat.contrib.sqlalchemy import metadata
from celery_once_beat.errors import SettingError, StoreDataError, StoreUnavailableError, UnknownScheduleError
from celery_once_beat.schedules import cron

celery = Celery("saas", broker=os.environ.get("REDIS_URL", "redis://localhost"), task_cls=OnceTask)
celery.conf.update(
    beat_scheduler="once",
    once_beat_limits={"reports": 2},  # at most two reports at once, across all workers
)
celery.conf.beat_schedule = {
    "push": {"task": "saas.push", "schedule": 60.0},
    "reconcile": {"task": "saas.reconcile", "schedule": crontab(hour=3, minute=0)},
}
schedules = Schedules(celery)
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///saas.db"))
Session = sessionmaker(engine)
web = FastAPI()
logger = logging.getLogger(__name__)


class Base(DeclarativeBase):
    pass


class Tenant(Base):
    """What the tenant wants. SQL is right, and Redis follows."""

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(primary_key=True)
    line: Mapped[str]
    zone: Mapped[str]
    users: Mapped[str]
    state: Mapped[str]  # active, paused or deleted
    changed: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Report(Base):
    __tablename__ = "reports"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey(Tenant.name))
    start: Mapped[str]


class Mail(Base):
    """Stands for the mail provider, which knows a mail by its Message-ID."""

    __tablename__ = "mails"
    message_id: Mapped[str] = mapped_column(primary_key=True)
    user: Mapped[str]
    start: Mapped[str]


def create_tables() -> None:
    Base.metadata.create_all(engine)
    metadata.create_all(engine)  # of self.window.record


# -- the web


Name = Annotated[str, Path(pattern=r"^[\w-]{1,64}$")]


class Wish(BaseModel):
    line: str  # "30 8 * * mon-fri"
    zone: str = "UTC"
    users: list[str]
    paused: bool = False


@web.put("/tenants/{name}")
def put_tenant(name: Name, wish: Wish) -> dict[str, Any]:
    try:
        cron(wish.line, tz=wish.zone)
    except (SettingError, ValueError) as exc:
        raise HTTPException(422, str(exc)) from exc
    with Session.begin() as session:
        tenant = session.get(Tenant, name) or Tenant(name=name)
        tenant.line, tenant.zone, tenant.users = wish.line, wish.zone, " ".join(wish.users)
        tenant.state, tenant.changed = "paused" if wish.paused else "active", datetime.now(timezone.utc)
        session.add(tenant)
    push_soon(name)
    return {"name": name}


@web.delete("/tenants/{name}")
def delete_tenant(name: Name) -> dict[str, Any]:
    with Session.begin() as session:
        left = {"state": "deleted", "changed": datetime.now(timezone.utc)}
        session.execute(update(Tenant).filter_by(name=name).values(left))
    push_soon(name)
    return {"name": name}


@web.get("/tenants/{name}")
def get_tenant(name: Name) -> dict[str, Any]:
    with Session() as session:
        starts = session.scalars(select(Report.start).filter_by(tenant=name).order_by(Report.start)).all()
        mails = session.scalars(select(Mail.user).where(Mail.start.in_(starts))).all()
    try:
        coming = schedules.next(f"tenants/{name}", 3)
    except UnknownScheduleError:
        coming = []
    return {"next": coming, "reports": starts, "mails": mails}


# -- two stores: what SQL says is pushed to Redis


def push_soon(name):
    with suppress(StoreUnavailableError):  # the row is committed: the entry "push" does it within a minute
        push(Tenant.name == name)


def push(*which):
    """Give these rows to Redis. One that is refused stops no other; what is the same isn't changed."""
    with Session() as session:
        tenants = session.scalars(select(Tenant).where(*which)).all()
    for each in tenants:
        name = f"tenants/{each.name}"
        try:
            if each.state == "deleted":
                schedules.delete(name)
                continue
            schedules.set(
                name,
                task="saas.report",
                schedule=cron(each.line, tz=each.zone),
                args=(each.name,),  # users are in SQL
                once={"catch_up": "latest", "grace": 86400},
                paused=each.state == "paused",
            )
        except (SettingError, StoreDataError):
            logger.exception("not pushed: %r", name)


@celery.task(name="saas.push", bind=True)
def push_changed(self):
    """A handler may have died, or stalled and then pushed an old row: push ten minutes again."""
    last = self.window.last_done
    push(*[Tenant.changed > last - timedelta(minutes=10)] if last else [])


@celery.task(name="saas.reconcile")
def reconcile():
    """Each night Redis gets what SQL has, and nothing else."""
    names = schedules.names("tenants/")  # before SQL is read: who comes now isn't among them
    with Session() as session:
        known = {f"tenants/{name}" for name in session.scalars(select(Tenant.name))}
    for name in {*names} - known:
        schedules.delete(name)
    push()


# -- the report


@celery.task(name="saas.report", bind=True, once_limit="reports")
def report(self, tenant):
    with Session.begin() as session:
        if self.window.record(session, skip=True):  # once, however often a worker dies
            session.add(Report(tenant=tenant, start=f"{self.window.start:%Y-%m-%d %H:%M:%S}"))
        users = session.get_one(Tenant, tenant).users.split()
    for user in users:  # behind the commit: one mail each, for once_beat_retention (a day), and none is lost
        mail.apply_once((user,), key=user, window=self.window, tracked=True)


@celery.task(name="saas.mail", bind=True, autoretry_for=(OSError,), retry_backoff=True)
def mail(self, user):
    with Session.begin() as session:  # a provider with idempotency keys; another one may get a mail twice
        session.merge(Mail(message_id=self.window.key, user=user, start=f"{self.window.start:%Y-%m-%d %H:%M:%S}"))
