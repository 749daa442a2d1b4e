"""The app of the test of which scripts a pool's child makes itself."""

from __future__ import annotations

import apps.unheard  # noqa: F401
from apps.once_app import app, ledger  # noqa: F401
from celery.signals import worker_process_init, worker_process_shutdown

from celery_once_beat.store import scripts

VERBS = {name: verb for name, verb in vars(scripts).items() if isinstance(verb, scripts.Verb)}
inherited: set[str] = set()


def made() -> set[str]:
    return {name for name, verb in VERBS.items() if "sha" in vars(verb)}


@worker_process_init.connect
def note_inherited(**_: object) -> None:
    inherited.update(made())


@worker_process_shutdown.connect
def note_made(**_: object) -> None:
    ledger.write("made", scripts=sorted(made() - inherited))
