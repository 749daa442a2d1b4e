"""The app of the integration tests, and a task whose threads ask for its window."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import gevent
from apps.once_app import app, ledger
from gevent.monkey import is_module_patched

from celery_once_beat.errors import OnceError


def look(task):
    try:
        return task.window.key
    except OnceError as exc:
        return type(exc).__name__


@app.task(bind=True)
def report(self):
    """Ask for the window in each kind of thread; one of them goes on when the body has ended."""
    ended = threading.Event()

    def left():
        ended.wait(30)
        ledger.write("left", found=look(self))

    thread = threading.Thread(target=left)
    thread.start()
    with ThreadPoolExecutor(2) as pool:
        looks = {"pool": pool.submit(look, self).result, "context": pool.submit(copy_context().run, look, self).result}
    if is_module_patched("threading"):
        looks["greenlet"] = gevent.spawn(look, self).get
    for how, found in looks.items():
        ledger.write("looked", how=how, found=found(), window=self.window.key)
    threading.Timer(0.3, ended.set).start()
