"""Bodies that write a row, recorded or not, and are killed or frozen on the way; messages come twice."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import sqlalchemy as sa
from apps.once_app import app, ledger
from sqlalchemy.orm import Session

from celery_once_beat import OnceTask
from celery_once_beat.errors import WindowRecorded
from celery_once_beat.windows import format_instant
from celery_once_beat.worker.execution import Execution

#: Where a body may be struck, in order.
POINTS = ("before record", "between record and commit", "behind the commit", "before the end is recorded")
#: What strikes it: its process is killed, its whole worker is, or its process stands still until somebody lets it go.
STRIKES = (*["kill", "freeze"] * 5, "kill worker")
#: Of the executions; of the messages that a beat sends.
STRUCK, DOUBLED = 0.35, 0.3

engine = sa.create_engine(os.environ["DATABASE"], pool_size=1)
notes = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.INT, primary_key=True), sa.Column("text", sa.String(64)))
#: Once this file is there, nobody is struck any more.
enough = Path(os.environ["ENOUGH"])
#: Where the execution of this process is to be struck.
doomed: list[str] = []


def reach(point):
    if doomed != [point]:
        return
    doomed.clear()
    strike = random.choice(STRIKES)
    ledger.write("strike", point=point, strike=strike)
    if strike == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif strike == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.killpg(os.getpgid(0), signal.SIGKILL)


close = Execution.close


def reach_and_close(self, *args, **options):
    reach(POINTS[-1])
    return close(self, *args, **options)


Execution.close = reach_and_close

send = app.amqp.send_task_message


def send_twice(producer, name, message, **options):
    if "once_entry" in message.headers and random.random() < DOUBLED:
        send(producer, name, message, **options)
    return send(producer, name, message, **options)


app.amqp.send_task_message = send_twice


def write(window, *, recorded):
    random.seed()
    doomed[:] = [random.choice(POINTS if window.scheduled else POINTS[:-1])]
    if random.random() > STRUCK or enough.exists():
        doomed.clear()
    name = f"{window.entry} {format_instant(window.start)}" if window.scheduled else window.entry
    ledger.write("start", name=name)
    reach(POINTS[0])
    with Session(engine) as session:
        if recorded:
            try:
                window.record(session)
            except WindowRecorded:
                ledger.write("was_recorded", name=name)
                raise
        session.execute(notes.insert().values(text=name))
        reach(POINTS[1])
        session.commit()
    reach(POINTS[2])


@app.task(bind=True, base=OnceTask, acks_late=True, reject_on_worker_lost=True)
def invoice(self):
    write(self.window, recorded=True)


@app.task(bind=True, base=OnceTask, acks_late=True, reject_on_worker_lost=True)
def unrecorded(self):
    write(self.window, recorded=False)
