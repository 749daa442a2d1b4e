"""Tasks that await, as they should; with ``BROKEN=1`` one whose body is an ``async def``."""

from __future__ import annotations

import asyncio
import os

from asgiref.sync import async_to_sync
from celery import Celery, shared_task
from ledger import Ledger

from celery_once_beat import OnceTask, current_window
from celery_once_beat.windows import format_instant

ledger = Ledger(os.environ["LEDGER"])
app = Celery("awaiting_app", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    once_beat_redis_url=os.environ["STORE_URL"],
    task_default_queue=os.environ["QUEUE"],
    broker_connection_retry_on_startup=True,
    beat_schedule={
        name: {"schedule": 2.0, "task": f"apps.awaiting_app.{name}"} for name in os.environ.get("SENT", "").split()
    },
)


class Awaiting(OnceTask):
    """A base that runs coroutines itself."""

    abstract = True

    def __call__(self, *args, **kwargs):
        return asyncio.run(super().__call__(*args, **kwargs))


async def note(task, how):
    await asyncio.sleep(0.01)
    window = current_window()
    same = task is None or task.window is window
    ledger.write("ran", how=how, entry=window.entry, start=format_instant(window.start), held=window.held, same=same)
    return how


@app.task(bind=True)
def synced(self):
    return async_to_sync(note)(self, "synced")


@shared_task(bind=True)
def run(self):
    return asyncio.run(note(self, "run"))


@app.task
def unbound():
    return async_to_sync(note)(None, "unbound")


@app.task(bind=True, base=Awaiting)
async def own_base(self):
    return await note(self, "own_base")


if os.environ.get("BROKEN"):

    @shared_task(bind=True, autoretry_for=(ValueError,))
    async def broken(self):
        pass


class Starting(OnceTask):
    """A base whose hook runs in the window, too."""

    abstract = True

    def before_start(self, *args):
        ledger.write("before", start=format_instant(self.window.start))


class AwaitedHooks(Starting):
    """Hooks that the pool awaits, too."""

    abstract = True

    async def before_start(self, *args):
        await asyncio.sleep(0.01)
        super().before_start(*args)

    async def on_success(self, *args):
        await asyncio.sleep(0.01)
        ledger.write("after", start=format_instant(self.window.start))


@app.task(bind=True, max_retries=1, base=AwaitedHooks)
async def awaited(self):
    """By a pool that awaits it; once for each window, in its second attempt."""
    await note(self, f"awaited {self.request.retries}")
    if not self.request.retries:
        raise self.retry(countdown=0)
