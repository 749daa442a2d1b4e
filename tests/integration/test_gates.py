"""What a window costs, in figures that no machine changes: each has its budget.

``pytest -s tests/integration/test_gates.py`` prints the table.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import kombu
import pytest
import redis
from benchmarks.claimed import ClaimedWindows
from celery import Celery
from needs import find
from processes import Processes, wait_until
from redis.connection import AbstractConnection
from servers import RedisServer

from celery_once_beat import OnceScheduler, OnceTask, worker
from celery_once_beat.store import Begun, Ending, store_of
from celery_once_beat.windows import Window, encode_headers

#: What a window may cost; in a worker of one process, beside a plain task.
BUDGETS = {
    "worker: Python calls": 157,
    "worker: Python calls of a task without a window": 13,
    "worker: functions on the stack of a begin": 11,
    "worker: their files": 6,
    "worker: sends": 1.2,
    "worker: futex calls": 1,
    "begin, finish: commands in scripts": 20,
    "begin, finish: bytes sent": 1_400,
    "claim, confirm: commands in scripts": 18,
    "claim, confirm: bytes sent": 1_400,
    "beat, burst: Python calls": 320,
    "beat, burst: sends": 0.1,
}
EACH, HOUR = 100, timedelta(hours=1)
KINDS = ("plain", "no window", "window")
OWNER = "celery@worker-6c8d9f7b5-abcde:0123456789ab:12ef"


def work(_number: int) -> None:
    """A task that no worker of these tests runs."""


def check(**counted: float) -> None:
    """Print what was counted beside its budget, and compare them."""
    print()
    for what, most in BUDGETS.items():
        if (name := re.sub(r"\W+", "_", what)) in counted:
            print(f"| {what} | {counted[name]:,.4g} | {most:,} |")
            assert counted[name] <= most, what


def fill(url: str) -> None:
    """Fill a worker's queue: EACH messages of each kind, twice. The first time it connects, and loads scripts."""
    with Celery("counted", broker=url, set_as_current=False) as app:
        app.conf.once_beat_redis_url = url
        claimed = ClaimedWindows(store_of(app), EACH, HOUR, ago=100 * HOUR)
        with app.producer_pool.acquire() as producer:
            for kind in KINDS * 2:
                for window in claimed.publish() if kind == "window" else claimed.windows:
                    sent_as = str(uuid.uuid4())
                    headers = encode_headers(Window(window.entry, window.start, window.start + HOUR), sent_as)
                    if kind != "window":  # as many, as long
                        headers = {name.replace("once_", "none_"): value for name, value in headers.items()}
                    task = "counted.plain" if kind == "plain" else "counted.once"
                    app.send_task(task, task_id=sent_as, headers=headers, producer=producer)
        store_of(app).close()


def execute(procs: Processes, url: str, file: Path, **options: Any) -> Any:
    """Let a worker execute all that waits; returns what it has counted."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    fill(url)
    env = {"BROKER": url, "STORE": url, "COUNTS": str(file), **options.pop("env", {})}
    worker = procs.start_worker("apps.counted_app", pool="solo", concurrency=1, env=env, loglevel="WARNING", **options)
    with redis.Redis.from_url(url) as client:
        wait_until(lambda: not client.llen("celery") and not client.hlen("unacked"), "all is done", 120)
    worker.terminate(group=True)
    worker.wait()
    return json.loads(file.read_text())


def test_a_worker(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """What its processes do for a window, and for a task that has none, beside a plain task."""
    bodies = execute(procs, redis_url, tmp_path / "calls", env={"PROFILED": "1"})["bodies"]
    calls: dict[str, list[int]] = defaultdict(list)
    for (kind, before), (same, after) in pairwise(bodies[len(KINDS) * EACH :]):
        if kind == same:
            calls[kind].append(after - before)
    plain, without, window = (statistics.mode(calls[kind]) for kind in KINDS)
    check(worker_Python_calls=window - plain, worker_Python_calls_of_a_task_without_a_window=without - plain)
    passed = execute(procs, redis_url, tmp_path / "stack")["passed"]
    passed = passed[[name.endswith(" traced") for name in passed].index(True) :]
    assert re.findall(r"^    (\w+/\w+\.py \w+)", str(worker.__doc__), re.MULTILINE) == passed
    check(
        worker_functions_on_the_stack_of_a_begin=len(passed),
        worker_their_files=len({name.split()[0] for name in passed}),
    )


def test_a_workers_system_calls(procs: Processes, redis_url: str, tmp_path: Path) -> None:
    """As it is traced: what a window sends, and how often its threads wake each other."""
    if not (strace := find("strace")):
        pytest.skip("strace may not look at processes here")
    traced = tmp_path / "traced"
    command = [str(strace), "-f", "-qq", "-o", str(traced), "-e", "trace=futex,sendto,write"]
    execute(procs, redis_url, tmp_path / "none", run_by=command)
    bodies: list[tuple[str, Counter[str]]] = []
    for line in traced.read_text().splitlines():
        if body := re.search(r'write\(2, "body of ([a-z ]+)', line):
            bodies.append((body[1], Counter()))
        elif (call := re.match(r"\d+ +(\w+)\(", line)) and bodies:
            bodies[-1][1][call[1]] += 1
    assert len(bodies) == 2 * len(KINDS) * EACH
    counted = bodies[len(KINDS) * EACH :]

    def more(call: str, average: Callable[[Iterable[int]], float]) -> float:
        window, plain = (average([calls[call] for kind, calls in counted if kind == of]) for of in ("window", "plain"))
        return window - plain

    # Of waking each other the median: on a busy machine threads have to wait for the GIL more often.
    check(worker_sends=more("sendto", statistics.mean), worker_futex_calls=more("futex", statistics.median))


def spent(server: RedisServer, do: Callable[[], object]) -> tuple[float, float]:
    """Commands that scripts carried out, and bytes that clients sent, a window of EACH."""

    def look() -> tuple[int, int]:
        with server.client() as client:
            commands: dict[str, Any] = client.info("commandstats")
            calls = {name: int(found["calls"]) for name, found in commands.items()}
            of_scripts = sum(calls.values()) - sum(calls.get(f"cmdstat_{name}", 0) for name in _OF_CLIENTS)
            return of_scripts, int(client.info("stats")["total_net_input_bytes"])

    look()
    before, nothing = look(), look()
    do()
    after = look()
    commands, sent = ((b - a) - (n - a) for a, n, b in zip(before, nothing, after, strict=True))
    return commands / EACH, sent / EACH


#: What a client sends itself.
_OF_CLIENTS = (
    "evalsha", "info", "hello", "client|setinfo", "client|setname", "select", "ping", "multi", "exec", "script|load",
)  # fmt: skip


def test_the_store(start_redis: Callable[..., RedisServer]) -> None:
    """What the server does for a window, and what it is sent."""
    server = start_redis()
    with Celery("counted", set_as_current=False) as app:
        app.conf.once_beat_redis_url = server.url()
        store = store_of(app)
        claimed = ClaimedWindows(store, EACH, HOUR, ago=100 * HOUR)

        def run() -> None:
            for window in claimed.windows:
                begun = store.begin(window, OWNER, 30.0)
                assert isinstance(begun, Begun)
                store.finish(Ending(window, OWNER, begun.fence, "done"))

        claimed.publish()
        run()  # scripts are loaded
        commands, sent = spent(server, claimed.publish)
        check(claim_confirm_commands_in_scripts=commands, claim_confirm_bytes_sent=sent)
        commands, sent = spent(server, run)
        check(begin_finish_commands_in_scripts=commands, begin_finish_bytes_sent=sent)
        store.close()


@pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="this kombu publishes one by one")
def test_a_beat(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does for a window of a burst, from the claim to the confirm."""
    with Celery("counted", broker=redis_url, set_as_current=False, task_cls=OnceTask) as app:
        app.task(work, name="counted.work", shared=False)
        now = datetime.now(timezone.utc)
        due = now + timedelta(seconds=3)
        app.conf.update(
            once_beat_redis_url=redis_url,
            once_beat_catch_up="latest",
            beat_schedule={
                f"entry-{number}": {
                    "task": "counted.work", "schedule": HOUR, "args": (number,), "options": {"once": {"anchor": due}},
                }
                for number in range(5 * EACH)
            },
        )  # fmt: skip
        with closing(OnceScheduler(app)) as scheduler:
            scheduler.tick()
            scheduler.broker_ready()
            wait_until(lambda: datetime.now(timezone.utc) > due, "they are due", 30)
            calls, sends = [0], [0]
            send = AbstractConnection.send_packed_command

            def counted_send(*arguments: Any, **options: Any) -> None:
                sends[0] += 1
                send(*arguments, **options)

            def count(_frame: FrameType, event: str, _: Any) -> None:
                calls[0] += event == "call"

            monkeypatch.setattr(AbstractConnection, "send_packed_command", counted_send)
            sys.setprofile(count)
            try:
                scheduler.tick()
            finally:
                sys.setprofile(None)
        with redis.Redis.from_url(redis_url) as client:
            assert client.llen("celery") == 5 * EACH
    check(beat_burst_Python_calls=calls[0] / (5 * EACH), beat_burst_sends=sends[0] / (5 * EACH))
