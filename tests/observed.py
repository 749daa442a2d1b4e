"""The system under the eyes of other tools: beats and workers of ``observed_app``, and what the tools have seen."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from processes import Proc, wait_until
from system import System

from celery_once_beat.windows import format_instant

if TYPE_CHECKING:
    from typing_extensions import Self

#: Seconds: whole minutes, which Sentry knows, and longer than a test takes.
EVERY = 120.0
_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Observed:
    """Beats and workers under these tools."""

    def __init__(self, system: System, *tools: str) -> None:
        self.system = system
        self.env: dict[str, Any] = {"OBSERVED": ",".join(tools)}
        system.app = "apps.observed_app"
        # What waits for a worker isn't published again meanwhile, nor what a busy machine publishes or executes slowly.
        system.settings = {
            "once_beat_claim_lease": 10.0, "once_beat_publish_timeout": 10.0, "once_beat_start_timeout": 60.0,
            "once_beat_lease": 10.0,
        }  # fmt: skip
        if "datadog" in tools:
            system.run_by = (str(Path(sys.executable).parent / "ddtrace-run"),)
            # Nobody has to listen: there is no agent.
            self.env |= {
                "DD_CELERY_DISTRIBUTED_TRACING": "true",
                "DD_TRACE_AGENT_URL": "http://127.0.0.1:1",
                "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
                "DD_REMOTE_CONFIGURATION_ENABLED": "false",
            }

    def schedule(self, task: str = "work", **definition: Any) -> None:
        """Let one window be due each second, each of an entry of its own: those that run first are looked at."""
        self.system.entries = {
            f"entry{n}": {
                "task": f"apps.once_app.{task}",
                "every": EVERY,
                "anchor": format_instant(_EPOCH + timedelta(seconds=n)),
                **definition,
            }
            for n in range(int(EVERY))
        }

    def beats(self) -> list[Proc]:
        """Two beats, ready."""
        names = ("beat1", "beat2")
        beats = [self.system.beat(name, **self.env, SENTRY_ENVIRONMENT=name) for name in names]
        return [beat.wait_ready() for beat in beats]

    def worker(self, name: str = "worker", **options: Any) -> Proc:
        return self.system.worker(name, env={**self.env, "SENTRY_ENVIRONMENT": name}, **options).wait_ready()

    def settle(self, number: int) -> list[str]:
        """Wait until so many windows are done, let no more begin, and return the entries of all that ran."""
        wait_until(lambda: len(self._done()) >= number, f"{number} windows are done", 60)
        for entry in self.system.entries:
            self.system.store.set_paused(entry, paused=True)
        for entry in self.system.entries:
            wait_until(lambda entry=entry: not self._open(entry), f"{entry} is closed", 60)
        done = sum(self.system.outcomes(entry).get("done", 0) for entry in self.system.entries)
        return wait_until(lambda: len(self._done()) == done and self._done(), "all that is done is recorded", 60)

    def _open(self, entry: str) -> Any:
        account = self.system.store.account(entry)
        return account is not None and account.open

    def _done(self) -> list[str]:
        return [event["entry"] for event in self.system.ledger.read("recorded")]

    def deliver_again(self, beats: list[Proc]) -> int:
        """With three windows in the queue stop the beats, and put a copy beside each message; how many there are."""
        wait_until(lambda: self.system.waiting() >= 3, "three messages wait", 90)
        for beat in beats:
            beat.stop()  # what it has claimed, it still publishes
        messages = self.system.queued()
        for message in messages:
            self.system.put(message)
        return len(messages)

    def spans(self, **fields: Any) -> list[dict[str, Any]]:
        """What tracers wrote, in the order of the spans' ends."""
        return self.system.ledger.read("span", **fields)


class Receiver(ThreadingHTTPServer):
    """Takes whatever is sent to it, as the collector of a tool does."""

    def __init__(self) -> None:
        #: Path and body of each request, in order.
        self.requests: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), _Requests)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        thread = Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Requests(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST  # noqa: N815  # the base's names

    def log_message(self, *_: object) -> None:
        """Not to the tests' output."""


class SentryServer(Receiver):
    """What a Sentry SDK sends, read as Sentry's own ingestion does."""

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"

    def check_ins(self, monitor: str) -> list[dict[str, Any]]:
        """What an entry's monitor was told, in the order in which it was said: several processes send."""
        items = [item for _, body in list(self.requests) for item in _items(body)]
        items.sort(key=lambda item: item[0])
        return [item for _, item in items if item["monitor_slug"] == monitor]


def _items(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The check-ins of an envelope, each with the time at which it was said."""
    envelope = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    line, _, rest = envelope.partition(b"\n")
    said = json.loads(line).get("sent_at", "")  # by the SDK: when it made the envelope
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length")
        if length is None:
            payload, _, rest = rest.partition(b"\n")
        else:
            payload, rest = rest[:length], rest[length:].removeprefix(b"\n")
        if header["type"] == "check_in":
            yield said, json.loads(payload)
