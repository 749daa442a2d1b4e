"""The story: what happens to the beats and workers, and when.

Seconds count from the moment at which all are running.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

from celery_once_beat.rules import count_starts
from celery_once_beat.windows import format_instant, starts_after

from .ledger import Event, WindowKey
from .stage import SCHEDULES, WORKERS, Stage, or_after
from .verdict import Balance, Verdict, judge, not_refused

__all__ = ("play",)

#: When a running report's message is sent once more, a beat is killed, a finished report's message is sent once
#: more, a worker is killed, and the beats are stopped.
COPY_OF_RUNNING, KILL_BEAT, COPY_OF_FINISHED, KILL_WORKER, STOP = 2.0, 6.0, 8.0, 11.0, 21.0
#: Windows fall due at full seconds; short ones have ended in the middle of one, and long before the next.
START_OF_SECOND, MIDDLE_OF_SECOND, BETWEEN_WINDOWS = 0.1, (0.3, 0.7), (0.4, 0.6)
#: Seconds of a report's body in which it may be interrupted or copied: not near its edges.
MIDDLE_OF_REPORT = (0.3, 1.2)
#: Seconds after which a body's end is in the store too.
ENDED = 0.5


def play(stage: Stage) -> Verdict:
    """The whole story on a new stage; raises what :meth:`Stage.until` raises."""
    stage.open_server()
    stage.start_all()
    stage.tell("told", "two beats and two workers are running; windows are named by their start, in UTC")
    return _Story(stage).play()


class _Story:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._running_since = time.time()

    def play(self) -> Verdict:
        stage = self._stage
        self._until_second(COPY_OF_RUNNING, "the first copy")
        report = stage.until(self._running_report, "a worker in the middle of a report")
        stage.send_copy(report.window, "while it is running")

        stage.until(lambda: self._running_for(KILL_BEAT) and time.time() % 1 < START_OF_SECOND, "a full second")
        stage.kill("beat-1", "just as windows fall due; beat-2 goes on")

        self._until_second(COPY_OF_FINISHED, "the second copy")
        report = stage.until(self._finished_report, "a report that has finished")
        stage.send_copy(report.window, "after it has finished")

        self._until_second(KILL_WORKER, "the second kill")
        report = stage.until(self._running_report, "a worker in the middle of a report")
        stage.kill(report.who, f"in the middle of {report.window}")

        self._until_second(STOP, "the end")
        return self._stop_all()

    def _running_for(self, seconds: float) -> bool:
        return time.time() - self._running_since >= seconds

    def _until_second(self, seconds: float, what: str) -> None:
        self._stage.until(lambda: self._running_for(seconds), f"the time for {what}")

    # -- moments ----------------------------------------------------------------------------------------------

    def _running_report(self) -> Event | None:
        """The start of a report that is running, if this is a moment at which nothing else begins or ends."""
        now = time.time()
        if not MIDDLE_OF_SECOND[0] < now % 1 < MIDDLE_OF_SECOND[1]:
            return None
        for event in reversed(self._stage.events):
            if event.entry == "report" and event.kind == "finish":
                return None
            if event.entry == "report" and event.kind == "start":
                return event if MIDDLE_OF_REPORT[0] < now - event.at < MIDDLE_OF_REPORT[1] else None
        return None

    def _finished_report(self) -> Event | None:
        """The end of the newest report that has ended, and whose end has been recorded by now."""
        copied = {copy.window for copy in self._stage.copies}
        for event in reversed(self._stage.events):
            if event.entry == "report" and event.kind == "finish" and event.window not in copied:
                return event if time.time() - event.at > ENDED else None
        return None

    def _between_windows(self) -> datetime | None:
        """The present time, if it is the middle of a second and no due window is still unclaimed."""
        now = datetime.now(timezone.utc)
        if not BETWEEN_WINDOWS[0] < now.timestamp() % 1 < BETWEEN_WINDOWS[1]:
            return None
        for name, account in self._stage.accounts().items():
            if account is None or any(starts_after(SCHEDULES[name], account.cursor, now)):
                return None
        return now

    # -- the end ----------------------------------------------------------------------------------------------

    def _stop_all(self) -> Verdict:
        stage = self._stage
        # No beat is left to publish what a beat claimed as it was stopped: nothing may be due at that moment.
        stopped = stage.until(self._between_windows, "the beats to have claimed all that is due")
        stage.stop("beat-2")
        stage.until(or_after(15.0, self._all_settled), "the open windows to end")
        killed = {kill.who for kill in stage.kills}
        for name in WORKERS:
            if name not in killed:
                stage.stop(name)
        stage.until(lambda: True, "the ledger's last lines")
        accounts = {name: stage.account(name) for name in SCHEDULES}
        owed = [
            WindowKey(name, format_instant(start))
            for name, account in accounts.items()
            # What was claimed while the beat ended is owed as well.
            for start in starts_after(SCHEDULES[name], stage.born[name], max(stopped, account.cursor))
        ]
        defined = {
            name: count_starts(SCHEDULES[name], account.since, account.cursor) for name, account in accounts.items()
        }
        balances = [Balance(name, defined[name], account.counts, account.owed) for name, account in accounts.items()]
        return judge(stage.events, owed, stage.kills, balances, stage.copies)

    def _all_settled(self) -> bool:
        stage = self._stage
        if any(account.open for account in stage.accounts().values() if account is not None):
            return False
        return not not_refused(stage.events, stage.copies)
