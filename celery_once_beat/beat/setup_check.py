"""Warns once of a setup in which the promise holds only by luck; ``celery once doctor`` checks more."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from typing import Any

from celery import Celery

from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import checks
from celery_once_beat.store import Store, loaded_as, loaders_of

from . import broker
from .entries import Entries
from .guard import guard
from .server_clock import ServerClock

logger = get_logger(__name__)


class SetupCheck:
    """The checks of one beat."""

    def __init__(self, app: Celery, store: Store, entries: Entries, clock: ServerClock, beat: str) -> None:
        self._app = app
        self._store = store
        self._entries = entries
        self._clock = clock
        self._beat = beat
        self._checked = self._names_checked = False

    def check(self) -> None:
        """Check the server, this machine's clock, the broker and leases."""
        if self._checked:
            return
        info, trouble = self._store.server()
        self._checked = True
        with guard(_not_checked, timed=False):
            settings, conf, entries = self._store.settings, self._app.conf, self._entries
            findings = [] if trouble else list(checks.server_findings(info, settings))
            named = ((entry.name, entry.source.task) for entry in entries)
            findings += checks.moment_findings(named, self._clock.now(), socket.gethostname())
            write: Any = self._app.connection_for_write()  # not this beat's own, which isn't made yet
            transport = str(write.transport_cls)
            findings += checks.lease_findings(transport, conf.broker_transport_options or {}, entries.leases())
            everywhere = broker.broadcast_entries(self._app, (entry.source for entry in entries if entry.tracked))
            findings += checks.delivery_findings(transport, everywhere)
            _warn(findings)

    def check_names(self, alive: Collection[str]) -> None:
        """Check whether other beats have this beat's entries by other names that Celery made. The last one finds it.

        ``alive`` are the beats that live. Raises StoreUnavailableError.
        """
        if self._names_checked or not self._entries.all_loaded:
            return
        with guard(_not_checked, timed=False, asks=True):
            mine = [entry for entry in self._entries if checks.made_by_celery(entry.name, entry.source.task)]
            named = [(entry.name, entry.fingerprint, frozenset({self._beat})) for entry in mine]
            if mine:
                tasks = {entry.fingerprint: entry.source.task for entry in mine}
                others = loaded_as(self._store, tasks, without={entry.name for entry in self._entries})
                for name, fingerprint in others:
                    if checks.made_by_celery(name, tasks[fingerprint]):
                        named.append((name, fingerprint, frozenset(alive) & loaders_of(self._store, name)))
            _warn(checks.alias_findings(named))
        self._names_checked = True


def _not_checked(why: str) -> None:
    logger.debug("once: not checked: %s", why)


def _warn(findings: Iterable[checks.Finding]) -> None:
    wrong = [f"{finding.check}: {finding.found}" for finding in findings if finding.verdict == "warn"]
    if wrong:
        text = "once: %s. 'celery once doctor' says what to set"
        logger.warning(text, "; ".join(wrong), extra=about("setup_doubtful"))
