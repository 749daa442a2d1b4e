"""Warns once of a setup in which the promise holds only by luck; ``celery once doctor`` checks more."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Any

from celery_once_beat.logs import about, get_logger
from celery_once_beat.rules import checks
from celery_once_beat.store import Overdue, loaded_as, loaders_of
from celery_once_beat.windows import WindowKey

from . import broker
from .guard import guard
from .part import BeatPart

logger = get_logger(__name__)


class SetupCheck(BeatPart):
    """The checks of one beat, at its first sweep and once all is loaded."""

    _checked = _names_checked = False

    def after_sweep(self, found: Overdue, replies: Sequence[Any]) -> Iterable[WindowKey]:
        """Check the server, this machine's clock, the broker and leases."""
        if self._checked:
            return ()
        app, store, entries = self._beat.app, self._beat.store, self._beat.entries
        info, trouble = store.server()
        self._checked = True
        with guard(_not_checked, timed=False):
            findings = [] if trouble else list(checks.server_findings(info, store.settings))
            named = ((entry.name, entry.source.task) for entry in entries)
            findings += checks.moment_findings(named, self._beat.clock.now(), socket.gethostname())
            write: Any = app.connection_for_write()  # not this beat's own, which isn't made yet
            transport = str(write.transport_cls)
            findings += checks.lease_findings(transport, app.conf.broker_transport_options or {}, entries.leases())
            everywhere = broker.broadcast_entries(app, (entry.source for entry in entries if entry.tracked))
            findings += checks.delivery_findings(transport, everywhere)
            _warn(findings)
        return ()

    def work(self) -> None:
        """Check whether other beats have this beat's entries under other names that Celery made. The last beat sees it.

        Raises StoreUnavailableError.
        """
        store, entries = self._beat.store, self._beat.entries
        if self._names_checked or not entries.all_loaded:
            return
        with guard(_not_checked, timed=False, asks=True):
            mine = [entry for entry in entries if checks.made_by_celery(entry.name, entry.source.task)]
            named = [(entry.name, entry.fingerprint, frozenset({self._beat.beat_id})) for entry in mine]
            if mine:
                tasks = {entry.fingerprint: entry.source.task for entry in mine}
                alive = frozenset(self._beat.recovery.alive)
                for name, fingerprint in loaded_as(store, tasks, without={entry.name for entry in entries}):
                    if checks.made_by_celery(name, tasks[fingerprint]):
                        named.append((name, fingerprint, alive & loaders_of(store, name)))
            _warn(checks.alias_findings(named))
        self._names_checked = True


def _not_checked(why: str) -> None:
    logger.debug("once: not checked: %s", why)


def _warn(findings: Iterable[checks.Finding]) -> None:
    wrong = [f"{finding.check}: {finding.found}" for finding in findings if finding.verdict == "warn"]
    if wrong:
        text = "once: %s. 'celery once doctor' says what to set"
        logger.warning(text, "; ".join(wrong), extra=about("setup_doubtful"))
