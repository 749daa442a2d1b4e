"""What is measured, each on an empty server, and each in processes of its own; a result is a dict of figures.

Nothing counts that wasn't done: a burst's messages are read and must be one for each entry, a worker's bodies note
themselves, and every window must be done by the store's own account.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stretches import Body, Stretches
from processes import TESTS, Proc, Processes, wait_until
from proxy import SlowProxy
from servers import RabbitServer, RedisServer, find_servers

QUEUE = "bench"
PATIENCE = 600
SCHEDULERS = {
    "once": "once", "stock": "celery.beat.Scheduler", "redbeat": "redbeat.RedBeatScheduler",
    "django": "django_celery_beat.schedulers.DatabaseScheduler",
}  # fmt: skip


class Bench:
    """One server for store and broker, emptied before each run."""

    def __init__(self, directory: Path) -> None:
        self.server = RedisServer.start(find_servers()["valkey"], args=["--save", ""])
        self.procs = Processes(directory)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.procs.end_all()
        self.server.__exit__(None, None, None)

    @contextmanager
    def _fresh(self, **env: str) -> Iterator[dict[str, str]]:
        """An empty server, and the environment of the processes that use it."""
        with self.server.client() as client:
            client.execute_command("FLUSHALL", "SYNC")  # not in the background, where its memory is still counted
        with tempfile.TemporaryDirectory(prefix="once-bench-") as counts:
            yield {"BROKER": self.server.url(1), "STORE": self.server.url(0), "COUNTS": counts, **env}
            self.procs.end()

    def _start(self, env: dict[str, str], what: str, **parameters: Any) -> subprocess.Popen[str]:
        """A measurement in a process of its own."""
        command = [sys.executable, "-m", "benchmarks.measure", what, json.dumps(parameters)]
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            command, env={**os.environ, **env, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """What it found, once it has ended well."""
        out, err = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise AssertionError(f"{process.args} ended with {process.returncode}:\n{err[-2000:]}")
        return dict(json.loads(out.splitlines()[-1]))

    def _child(self, env: dict[str, str], what: str, **parameters: Any) -> dict[str, Any]:
        return self._read(self._start(env, what, **parameters))

    # -- one process ------------------------------------------------------------------------------------------

    def alone(self, what: str, **parameters: Any) -> dict[str, Any]:
        """A measurement of ``measure`` in one process."""
        with self._fresh() as env:
            return self._child(env, what, **parameters)

    def burst(self, subject: str, count: int, patience: float = 1e9) -> dict[str, Any]:
        """Entries a second, and CPU µs an entry, of a burst; each entry's message is there, once."""
        with self._fresh() as env:
            found = self._child(env, "burst", subject=subject, count=count, patience=patience)
        return self._rate(found, count, patience)

    def over_rabbitmq(self, subject: str, count: int) -> dict[str, Any]:
        """The same over a RabbitMQ."""
        with RabbitServer.start() as rabbit, self._fresh(BROKER=rabbit.url()) as env:
            return self._rate(self._child(env, "burst", subject=subject, count=count), count)

    def _rate(self, found: dict[str, Any], count: int, patience: float = math.inf) -> dict[str, Any]:
        assert found["sent"] == found["different"], found
        assert found["sent"] == count or found["seconds"] >= patience, found
        return {"rate": found["sent"] / found["seconds"], "cpu": found["cpu"] / found["sent"] * 1e6}

    def memory(self, subject: str, count: int) -> dict[str, Any]:
        """Bytes of the server's an entry, once all are loaded and their beat is gone."""
        with self._fresh() as env, self.server.client() as client:
            before = client.info("memory")["used_memory"]
            self._child(env, "start", subject=subject, count=count)
            return {"bytes": (client.info("memory")["used_memory"] - before) / count}

    # -- several beats ----------------------------------------------------------------------------------------

    def share(self, beats: int, count: int) -> dict[str, Any]:
        """A burst of ``count`` entries that so many beats share: seconds until the last has no more to do."""
        with self._fresh() as env:
            due = time.time() + 4 + beats * (2 + count / 2500)
            running = [self._start(env, "share", count=count, due=due) for _ in range(beats)]
            found = [self._read(process) for process in running]
            with self.server.client(1) as client:
                assert client.llen(QUEUE) == count, found
        sent = [one["sent"] for one in found]
        assert sum(sent) == count, sent
        return {
            "seconds": max(one["seconds"] for one in found), "cpu": sum(one["cpu"] for one in found) / count * 1e6,
            "least": min(sent) / count, "most": max(sent) / count,
        }  # fmt: skip

    def paused(self, subject: str, count: int, seconds: float) -> dict[str, Any]:
        """All are due at once, and of two real beats one is paused in the middle, for so many seconds."""
        scheduler = SCHEDULERS[subject]
        due = time.time() + (15 + count / 1000 if subject == "once" else 0)
        with self._fresh(SUBJECT=subject, COUNT=str(count), DUE=str(due), PAIR="1") as env:
            first = self.procs.start_beat("benchmarks.pair", env=env, scheduler=scheduler, loglevel="WARNING")
            if subject == "redbeat":  # its entries are due as soon as they are saved: by the first one, then
                self._wait_for_messages(1)
            self.procs.start_beat("benchmarks.pair", env=env, scheduler=scheduler, loglevel="WARNING")
            self._wait_for_messages(count // 4)
            first.pause()
            time.sleep(seconds)
            first.resume()
            self._wait_until_quiet()
            bodies = self._execute(env, "prefork", 2)
        times = Counter(body.number for body in bodies)
        return {
            "twice": sum(n > 1 for n in times.values()), "lost": count - len(times),
            "refused": self._sum("refused"),
        }  # fmt: skip

    def felt(self, subject: str, beats: int, count: int) -> dict[str, Any]:
        """Seconds from the instant at which all entries are due to their bodies, in one worker of four threads."""
        due = float(int(time.time() + 10 + beats * (2 + count / 1000)))
        with self._fresh(SUBJECT=subject, COUNT=str(count), DUE=str(due), PAIR="1", WAIT="1") as env:
            self._worker(env, "threads", 4)
            for _ in range(beats):
                self.procs.start_beat("benchmarks.pair", env=env, scheduler=SCHEDULERS[subject], loglevel="WARNING")
            wait_until(lambda: len(_bodies(env)) >= count, f"{count} bodies have run", PATIENCE, every=0.5)
            bodies = _bodies(env)
            assert sorted(body.number for body in bodies) == list(range(count)), "each once"
        late = sorted(body.moment - due for body in bodies)
        assert late[0] > 0, late[0]
        return {"p50": late[count // 2], "p99": late[int(count * 0.99)], "last": late[-1]}

    def _sum(self, field: str) -> int:
        """Of all entries' hashes."""
        with self.server.client() as client:
            keys = list(client.scan_iter("*:entry:*", count=1000))
            with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hget(key, field)
                return sum(int(value or 0) for value in pipe.execute())

    def _wait_for_messages(self, count: int) -> None:
        with self.server.client(1) as client:
            wait_until(lambda: client.llen(QUEUE) >= count, f"{count} messages are sent", PATIENCE)

    def _wait_until_quiet(self) -> None:
        """Until nothing has been sent for longer than a beat waits for another that is gone."""
        with self.server.client(1) as client:
            last, since = -1, time.monotonic()
            while time.monotonic() - since < 20:
                if (now := client.llen(QUEUE)) != last:
                    last, since = now, time.monotonic()
                time.sleep(0.5)

    # -- workers ----------------------------------------------------------------------------------------------

    def worker(self, pool: str, concurrency: int, stretches: Stretches, away: float = 0.0) -> dict[str, Any]:
        """What each kind of message costs a worker; its store is so many seconds away, there and back."""
        with self._fresh() as env, SlowProxy(self.server.port, away) as proxy:
            self._child(env, "fill", **stretches._asdict())
            with self.server.client(1) as client:
                assert client.llen(QUEUE) == stretches.total
            more = {"ALSO": str(self.server.pid), **({"PREFORK": "1"} if pool == "prefork" else {})}
            bodies = self._execute(env | more | ({"STORE": proxy.url(0)} if away else {}), pool, concurrency)
            assert sorted(body.number for body in bodies) == list(range(stretches.total)), "each once"
            windows = stretches.in_order.count("windows") * stretches.count
            assert self._sum("c:done") == windows, "each window is done"
        return stretches.figures(bodies)

    def sampled(self, stretches: Stretches) -> dict[str, Any]:
        """Where the time of a worker of pool solo goes: µs of each kind of message by place."""
        count, kinds = stretches.count, stretches.kinds
        with self._fresh(SAMPLED=f"{count} {len(kinds)}") as env:
            self._child(env, "fill", **stretches._asdict())
            figures = stretches.figures(self._execute(env, "solo", 1))
            samples = json.loads(Path(env["COUNTS"], "samples").read_text())
        of_kind = {kind: sum(n for at, _, n in samples if at == place) for place, kind in enumerate(kinds)}
        return {
            f"{kinds[at]} {where}": figures[kinds[at]] * n / of_kind[kinds[at]] for at, where, n in samples if at >= 0
        }

    def _execute(self, env: dict[str, str], pool: str, concurrency: int) -> list[Body]:
        """Let a worker do all that waits."""
        worker = self._worker(env, pool, concurrency)
        with self.server.client(1) as client:
            wait_until(
                lambda: not client.llen(QUEUE) and not client.hlen("unacked"), "nothing waits", PATIENCE, every=0.2
            )
        assert worker.stop(60) == 0, worker.tail()
        return _bodies(env)

    def _worker(self, env: dict[str, str], pool: str, concurrency: int, *more: str) -> Proc:
        return self.procs.start_worker(
            "benchmarks.app", env=env, pool=pool, concurrency=concurrency, loglevel="WARNING", extra_args=more
        )

    def takeover(self, windows: int, lease: float) -> dict[str, Any]:
        """A worker is killed in the middle of so many bodies: seconds until each runs again in another."""
        with self._fresh(
            SUBJECT="once", COUNT=str(windows), DUE=str(time.time() + 5), TASK="bench.long", LEASE=str(lease)
        ) as env:
            self.procs.start_beat("benchmarks.pair", env=env, loglevel="WARNING")
            doomed = self._worker(env, "prefork", windows)
            wait_until(lambda: len(_bodies(env)) == windows, "all run", 60)
            heir = self._worker(env, "prefork", windows, "--hostname", "heir@%h")
            wait_until(lambda: "ready" in heir.log or heir.children(), "another worker is there", 60)
            time.sleep(3)
            killed = time.time()
            doomed.kill()
            wait_until(lambda: len(_bodies(env)) == 2 * windows, "all run again", 120)
            again = sorted(body.moment - killed for body in _bodies(env))[windows:]
        return {"first": again[0], "last": again[-1]}


def _bodies(env: dict[str, str]) -> list[Body]:
    files = Path(env["COUNTS"]).glob("[0-9]*")
    lines = [(path.name, *line.split()) for path in files for line in path.read_text().splitlines()]
    return [
        Body(int(number), float(moment), int(process), *map(float, used)) for process, number, moment, *used in lines
    ]
