"""``once_app``, whose processes also note what the store told them, and what they published.

It only looks: each verb does what it does. By it a test sees whether anybody acted on what wasn't certain.
"""

from __future__ import annotations

import functools
import sys

from apps.once_app import app, ledger
from celery.signals import before_task_publish

from celery_once_beat.errors import OnceError
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import format_instant
from celery_once_beat.worker.base import WindowExecution

__all__ = ("app",)

#: Answers that many get, and on which nobody acts.
_PLAIN = ("Moved", "Unchanged", "Busy")


def tell(verb, window, answer):
    name = type(answer).__name__
    if name not in _PLAIN:
        start = format_instant(window.start)
        ledger.write("told", verb=verb.removesuffix("_many"), answer=name, entry=window.entry, start=start)


def watch_many(verb, windows_of):
    original = getattr(Store, verb)

    @functools.wraps(original)
    def watched(self, beat, requests, *more):
        requests = list(requests)
        replies = original(self, beat, requests, *more)
        for request, reply in zip(requests, replies, strict=True):
            tell(verb, windows_of(request), reply)
        return replies

    setattr(Store, verb, watched)


def watch_one(verb, window_of=lambda window: window):
    original = getattr(Store, verb)

    @functools.wraps(original)
    def watched(self, asked, *args, **kwargs):
        window = window_of(asked)
        try:
            reply = original(self, asked, *args, **kwargs)
        except OnceError as exc:
            tell(verb, window, exc)
            raise
        tell(verb, window, reply)
        return reply

    setattr(Store, verb, watched)


watch_many("claim_many", lambda request: request.window)
watch_many("take_many", lambda pair: pair[0])
watch_one("finish", lambda ending: ending.window)

own = WindowExecution.own


def own_and_tell(self, reply, sent):
    tell("begin", self.key, reply)
    own(self, reply, sent)


WindowExecution.own = own_and_tell


if "beat" in sys.argv:  # a worker that puts a message back publishes it too, on no claim

    @before_task_publish.connect
    def note_published(headers=None, **_):
        if headers and "once_entry" in headers:
            ledger.write("published", entry=headers["once_entry"], start=headers["once_start"])
