"""The demo: two beats, two workers, one of each killed while things run, and a verdict. Some 40 seconds.

Ends with status 0 if every window was executed as promised, 1 if anything was wrong, 130 if it was interrupted;
whatever happens, no process is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from celery.schedules import maybe_schedule
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from celery_once_beat.audit import balance
from celery_once_beat.clients import connect
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.replies import EntryAccount
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store
from celery_once_beat.windows import format_instant, starts_after

from . import server
from .app import app
from .ledger import Event, Kill, Ledger, Verdict, WindowKey, judge
from .processes import Process

#: Seconds after all are running at which a beat is killed, a worker is, and the beats are stopped.
KILL_BEAT, KILL_WORKER, STOP = 8.0, 15.0, 28.0
#: Seconds of a report's body in which its worker may be killed: not near its edges, nor when others fall due.
MIDDLE_OF_REPORT, MIDDLE_OF_SECOND = (0.3, 1.2), (0.3, 0.7)

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEDULES: dict[str, Any] = {
    name: maybe_schedule(entry["schedule"]) for name, entry in app.conf.beat_schedule.items()
}
T = TypeVar("T")


class Interrupted(Exception):
    """Somebody wants the demo to end."""


class Failed(Exception):
    """The demo can't go on; says why."""


class Demo:
    """One run: its processes, and what has been seen of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.events: list[Event] = []
        self.kills: list[Kill] = []
        self.interrupted = False
        self.began = self.running_since = time.time()
        self._started: list[Process] = []
        self._expected: dict[str, Process] = {}
        self._url = ""
        self._answered = False
        # Also on a server that others use, keys and queues are the demo's own.
        self._prefix = f"ha-pair-{uuid.uuid4().hex[:12]}:"
        self._store: Store | None = None
        self._born: dict[str, datetime] = {}

    def run(self) -> Verdict:
        """The whole story."""
        self._open_server()
        self._start_all()
        self._until(lambda: self._running_for(KILL_BEAT) and time.time() % 1 < 0.1, "a full second")
        self._kill("beat-1", "just as windows fall due; beat-2 goes on")
        self._until(lambda: self._running_for(KILL_WORKER), "time for the second kill")
        report = self._until(self._report_to_interrupt, "a worker in the middle of a report")
        self._kill(report.who, f"in the middle of {report.window}")
        self._until(lambda: self._running_for(STOP), "time to stop")
        return self._stop_all()

    def end(self) -> None:
        """End every process, whatever its state; leave no key on a server that isn't the demo's."""
        for process in reversed(self._started):  # the server last
            process.kill()
        if server.given() and self._answered:
            with contextlib.suppress(RedisError):  # it may be gone meanwhile
                _delete_keys(self._url, self._prefix)

    # -- watching ---------------------------------------------------------------------------------------------

    def _say(self, text: str, at: float | None = None) -> None:
        print(f"{(at or time.time()) - self.began:5.1f} s  {text}", flush=True)

    def _tell(self, event: Event) -> None:
        execution = f", execution {event.attempt}" if event.attempt > 1 else ""
        if event.kind == "finish":
            self._say(f"{event.who}  finished {event.window}{execution}", event.at)
        elif event.kind == "start" and (event.attempt > 1 or event.entry == "report"):
            verb = "takes over" if execution else "started"
            self._say(f"{event.who}  {verb} {event.window}{execution}", event.at)
        elif event.kind == "published" and event.again:
            self._say(f"{event.who}    published {event.window} again: it is overdue", event.at)

    def _until(self, predicate: Callable[[], T | None], what: str, timeout: float = 30.0) -> T:
        """Watch until the predicate's value is true, and return it. The demo waits nowhere else.

        Raises Interrupted, and Failed if a process ended by itself, or with ``what`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self.interrupted:
                raise Interrupted
            for event in self.ledger.news():
                self.events.append(event)
                self._tell(event)
            for process in self._expected.values():
                code = process.exit_code()
                if code is not None:
                    raise Failed(f"{process.name} ended by itself, with status {code}")
            value = predicate()
            if value:
                return value
            if time.monotonic() > deadline:
                raise Failed(f"waited {timeout:g} s in vain for {what}")
            time.sleep(0.02)

    def _running_for(self, seconds: float) -> bool:
        return time.time() - self.running_since >= seconds

    def _report_to_interrupt(self) -> Event | None:
        """The start of a report that is running, if this is a moment at which nothing else begins or ends."""
        now = time.time()
        if not MIDDLE_OF_SECOND[0] < now % 1 < MIDDLE_OF_SECOND[1]:
            return None
        for event in reversed(self.events):
            if event.entry == "report" and event.kind == "finish":
                return None
            if event.entry == "report" and event.kind == "start":
                return event if MIDDLE_OF_REPORT[0] < now - event.at < MIDDLE_OF_REPORT[1] else None
        return None

    # -- starting and killing ---------------------------------------------------------------------------------

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        process = Process(name, command, self.directory, {**os.environ, **(env or {})})
        self._started.append(process)
        self._expected[name] = process
        return process

    def _open_server(self) -> None:
        url = server.given()
        if url is None:
            command, url = server.embedded()
            self._start("server", command)
            self._say(f"{Path(command[0]).name} on {url.removeprefix('redis://').removesuffix('/0')}")
        else:
            self._say(f"the server of ONCE_BEAT_REDIS_URL, {maybe_sanitize_url(url)}")
        self._url = url
        self._store = Store(Settings(redis_url=url, key_prefix=self._prefix + "once:"))
        self._until(self._server_answers, f"an answer of {maybe_sanitize_url(url)}", 10.0)
        self._answered = True

    def _server_answers(self) -> bool:
        try:
            self._accounts()
        except StoreUnavailableError:
            return False
        return True

    def _start_all(self) -> None:
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "HA_PAIR_URL": self._url,
            "HA_PAIR_PREFIX": self._prefix,
            "HA_PAIR_LEDGER": str(self.ledger.path),
        }
        celery = [sys.executable, "-m", "celery", "-A", "examples.ha_pair.app"]
        workers, beats = ("worker-1", "worker-2"), ("beat-1", "beat-2")
        for name in workers:
            command = [*celery, "worker", "-n", f"{name}@%h", "-c", "3", "-l", "INFO"]
            self._start(name, command, {**env, "HA_PAIR_NAME": name})
        for name in workers:
            self._until(partial(self._expected[name].printed, r" ready\.$"), f"{name} to be ready")
        for name in beats:
            command = [*celery, "beat", "-S", "once", "--pidfile=", "-l", "INFO"]
            self._start(name, command, {**env, "HA_PAIR_NAME": name})
        self._until(self._schedule_loaded, "the schedule in the store")
        for name in beats:
            self._until(partial(self._expected[name].printed, "beat: Starting"), f"{name} to start")
        self.running_since = time.time()
        self._say("two beats and two workers are running; windows are named by their start, in UTC")

    def _schedule_loaded(self) -> bool:
        # Where each entry's windows begin to be owed is noted now: a store that forgot it later would show.
        for name, account in self._accounts().items():
            if account is not None:
                self._born.setdefault(name, account.born)
        return len(self._born) == len(SCHEDULES)

    def _kill(self, name: str, remark: str) -> None:
        self._expected.pop(name).kill()
        self.kills.append(Kill(name, time.time()))
        self._say(f"KILLED {name} (SIGKILL) {remark}")

    # -- the end ----------------------------------------------------------------------------------------------

    def _stop_all(self) -> Verdict:
        # No beat is left to publish what a beat claimed as it was stopped: nothing may be due at that moment.
        stopped = self._until(self._between_windows, "the beats to have claimed all that is due")
        self._stop("beat-2")
        self._until(_or_after(15.0, self._nothing_open), "the open windows to end")
        for name in [name for name in self._expected if name.startswith("worker")]:
            self._stop(name)
        self._until(lambda: True, "the ledger's last lines")
        accounts = {name: self._account(name) for name in SCHEDULES}
        owed = [
            WindowKey(name, format_instant(start))
            for name, account in accounts.items()
            # What was claimed while the beat ended is owed as well.
            for start in starts_after(SCHEDULES[name], self._born[name], max(stopped, account.cursor))
        ]
        balances = [balance(name, SCHEDULES[name], account) for name, account in accounts.items()]
        return judge(self.events, owed, self.kills, balances)

    def _between_windows(self) -> datetime | None:
        """The present time, if it is the middle of a second and no due window is still unclaimed."""
        now = datetime.now(timezone.utc)
        if not 400_000 < now.microsecond < 600_000:
            return None
        for name, account in self._accounts().items():
            if account is None or any(starts_after(SCHEDULES[name], account.cursor, now)):
                return None
        return now

    def _stop(self, name: str) -> None:
        process = self._expected.pop(name)
        process.terminate()
        self._until(lambda: process.exit_code() is not None, f"{name} to end after SIGTERM")
        if process.exit_code():
            raise Failed(f"{name} ended with status {process.exit_code()} after SIGTERM")
        self._say(f"{name} has stopped")

    def _accounts(self) -> dict[str, EntryAccount | None]:
        assert self._store is not None
        return {name: self._store.account(name) for name in SCHEDULES}

    def _account(self, name: str) -> EntryAccount:
        account = self._accounts()[name]
        if account is None:
            raise Failed(f"the store knows nothing of {name} any more")
        return account

    def _nothing_open(self) -> bool:
        return not any(account.open for account in self._accounts().values() if account is not None)


def _or_after(seconds: float, predicate: Callable[[], bool]) -> Callable[[], bool]:
    """True once the predicate is, or after so many seconds: then the verdict says what is amiss."""
    deadline = time.monotonic() + seconds
    return lambda: predicate() or time.monotonic() > deadline


def _delete_keys(url: str, prefix: str) -> None:
    client = connect(Settings(redis_url=url))
    for key in client.scan_iter(match=prefix + "*", count=1000):
        client.delete(key)
    client.close()


def main() -> int:
    directory = Path(tempfile.mkdtemp(prefix="ha-pair-"))
    demo = Demo(directory)

    def interrupt(*_: object) -> None:
        # Seen by the demo's next look, so that no process is started and not noted.
        demo.interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)

    keep = True
    try:
        verdict = demo.run()
        published = Counter(event.who for event in demo.events if event.kind == "published")
        executed = Counter(event.who for event in demo.events if event.kind == "finish")
        for what, by in (("published", published), ("executed", executed)):
            print(f"{what} by " + ", ".join(f"{who}: {number}" for who, number in sorted(by.items())))
        print(*verdict.lines(), sep="\n", flush=True)
        keep = bool(verdict.faults)
        return 1 if keep else 0
    except Interrupted:
        keep = False
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as with "| head"
        keep = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Failed, OnceError, server.NoServerError) as exc:
        keep = any(directory.iterdir())
        print(f"ha_pair: {exc}", file=sys.stderr)
        return 1
    finally:
        demo.end()
        if keep:
            print(f"logs and ledger: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
