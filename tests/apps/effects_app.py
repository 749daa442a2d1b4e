"""Bodies that write in a database, recorded and not; in one task or in several."""

from __future__ import annotations

import os

import sqlalchemy as sa
from apps.once_app import app, ledger, note
from killpoints import reach
from sqlalchemy.orm import Session

from celery_once_beat import OnceTask

engine = sa.create_engine(os.environ["DATABASE"], pool_size=1)
notes = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.INT, primary_key=True), sa.Column("text", sa.String(64)))


@app.task(bind=True, base=OnceTask, name="effects.invoice", acks_late=True)
def invoice(self, number=0):
    note("start", self.window, worker=self.request.hostname)
    with Session(engine) as session:
        self.window.record(session, result={"invoice": number})
        session.execute(notes.insert().values(text=f"{self.window.key}"))
        reach("worker.body")
        session.commit()
    reach("worker.committed")
    note("finish", self.window, worker=self.request.hostname)
    return {"invoice": number, "now": True}


@app.task(bind=True, base=OnceTask, name="effects.pages", acks_late=True)
def pages(self, page, last):
    with Session(engine) as session, session.begin():
        if self.window.record(session, skip=True):
            session.execute(notes.insert().values(text=f"page {page} {self.window.key}"))
    if page == last:
        ledger.write("told", results=page)
        return page
    raise self.replace(pages.s(page + 1, last))
