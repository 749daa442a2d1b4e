"""One measurement in a process of its own: ``python -m benchmarks.measure burst '{"subject": "once", …}'``.

Prints a JSON object. ``runs`` starts the servers and this, and says what comes of it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import redis
from benchmarks.app import BROKER, QUEUE, STORE, app
from benchmarks.claimed import ClaimedWindows
from benchmarks.stretches import KINDS, Stretches
from benchmarks.subjects import HOUR, SUBJECTS, every, name, once, tick_until_idle

from celery_once_beat import OnceScheduler, Schedules
from celery_once_beat.settings import Settings
from celery_once_beat.signals import window_published
from celery_once_beat.store import Begun, Ending, Store, store_of
from celery_once_beat.windows import Window, WindowKey, encode_headers

#: Seconds until a burst's entries are due: at first, and for each entry that has to be loaded before.
HEAD_START, PER_ENTRY = 2.0, 1 / 2500
#: Of an execution, as long as a real one's.
OWNER = "worker-1@host-7f9c:0123456789ab:0123"


def sent(url: str = BROKER) -> list[int]:
    """The numbers of the entries whose messages wait in the queue."""
    if url.startswith("amqp"):
        with app.connection_for_read() as connection:
            queue = app.amqp.queues[QUEUE](connection.default_channel)
            return [message.decode()[0][0] for message in iter(partial(queue.get, no_ack=True), None)]
    with redis.Redis.from_url(url) as client:
        messages = client.lrange(QUEUE, 0, -1)
    bodies = [json.loads(base64.b64decode(json.loads(message)["body"])) for message in messages]
    return [int(args[0]) for args, _kwargs, _embed in bodies]


def wait_for(scheduler: Any, due: float) -> None:
    """Let beat's loop run until ``due`` (epoch seconds), and be there on time."""
    if time.time() > due:
        raise SystemExit("the entries were due before they were loaded")
    while (left := due - time.time()) > 0.02:
        time.sleep(min(scheduler.tick(), left - 0.01))
    while time.time() < due:
        pass


class Clocks:
    """Seconds on the wall, and of this process's CPU, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}


def burst(subject: str, count: int, patience: float = 1e9) -> dict[str, Any]:
    """All entries are due at once: until the last message is out (and confirmed), or ``patience`` is at an end."""
    due = time.time() + HEAD_START + count * PER_ENTRY
    scheduler = SUBJECTS[subject](count, due)()
    assert scheduler.producer.channel  # connected, as a beat is that runs since long
    if subject == "once":
        wait_for(scheduler, due)
    clocks = Clocks()
    tick_until_idle(scheduler, patience)
    found = clocks.read()
    numbers = sent()
    return {"sent": len(numbers), "different": len(set(numbers)), **found}


def share(count: int, due: float) -> dict[str, Any]:
    """As a burst, beside other beats: how many messages this one sent, as its signal counts them."""
    mine: Counter[str] = Counter()

    def note(window: Any, **_: Any) -> None:
        mine[window.entry] += 1

    window_published.connect(note)
    scheduler = once(every(count, due))
    wait_for(scheduler, due)
    clocks = Clocks()
    tick_until_idle(scheduler)
    return {"sent": mine.total(), **clocks.read()}


def start(subject: str, count: int) -> dict[str, Any]:
    """From nothing to a scheduler that would send; nothing is due."""
    make = SUBJECTS[subject](count, None)
    clocks = Clocks()
    make().tick()
    return clocks.read()


def many(count: int, seconds: float) -> dict[str, Any]:
    """Until so many entries are loaded; the memory of the process, and of this the beat's own; then idle."""
    app.conf.beat_schedule = every(count, None)
    clocks = Clocks()
    scheduler = OnceScheduler(app)
    celery_s = _memory()
    scheduler.tick()
    while scheduler.entries.unloaded():
        scheduler.tick()
    found, memory = clocks.read(), _memory()
    return {
        **found, "memory": memory, "own": memory - celery_s, "core": _core(scheduler, seconds),
        "server": redis.Redis.from_url(STORE).info("memory")["used_memory"],
    }  # fmt: skip


def stored(count: int, changes: int) -> dict[str, Any]:
    """Until so many schedules are loaded that people have set; then CPU that each of some changes costs the beat."""
    with closing(Schedules(app)) as schedules:
        for number in range(count):
            schedules.set(name(number), task="bench.once", schedule=HOUR, args=(number,))
        clocks = Clocks()
        scheduler = _loaded(count)
        found, cpu = clocks.read(), 0.0
        for number in range(changes):
            schedules.set(name(number), task="bench.once", schedule=2 * HOUR, args=(number,))
            began = time.process_time()
            while scheduler.entries.get(name(number)).source.schedule.run_every == HOUR:
                time.sleep(min(scheduler.tick(), 0.1))
            cpu += time.process_time() - began
    return {**found, "change": cpu / changes}


def _loaded(count: int) -> OnceScheduler:
    """A beat that has loaded so many schedules of people's."""
    scheduler = OnceScheduler(app)
    while len(scheduler.entries) < count or scheduler.entries.unloaded():
        time.sleep(min(scheduler.tick(), 0.1))
    return scheduler


def managed(count: int) -> dict[str, Any]:
    """So many schedules that people have set: CPU of setting them, of looking at them, and of their file."""
    with closing(Schedules(app)) as schedules:
        began = time.process_time()
        schedules.set_many(
            [{"name": name(n), "task": "bench.once", "schedule": HOUR, "args": (n,)} for n in range(count)]
        )
        found = {"set": time.process_time() - began}
    _loaded(count)
    file = Path(os.environ["COUNTS"], "schedules.json")
    for what, *words in (
        ("export", "schedules", "export"),
        ("status", "status"),
        ("apply", "schedules", "apply", "-f", file),
    ):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.app", "once", *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode > (what == "status"):  # 1: no beat lives any more, it says
            raise SystemExit(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[what] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if what == "export":
            file.write_text(done.stdout)
    return found


def _memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def idle(subject: str, count: int, seconds: float) -> dict[str, Any]:
    """Nothing is due: what a tick costs, and what beat's own loop costs for so many seconds."""
    scheduler = SUBJECTS[subject](count, None)()
    scheduler.tick()
    ticks = []
    for _ in range(50):
        began = time.perf_counter()
        scheduler.tick()
        ticks.append(time.perf_counter() - began)
    return {"tick": statistics.median(ticks), "core": _core(scheduler, seconds)}


def _core(scheduler: Any, seconds: float) -> float:
    """How much of a core beat's own loop takes for so long."""
    cpu, until = time.process_time(), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(scheduler.tick(), left))
    return (time.process_time() - cpu) / seconds


def late(count: int, seconds: int, apart: float) -> dict[str, Any]:
    """Each entry is due once a second: how long after its start each message was out."""
    found: dict[datetime, list[float]] = {}
    due = float(int(time.time()) + 3)

    def note(window: Any, **_: Any) -> None:
        if window.start.timestamp() >= due:
            found.setdefault(window.start, []).append(time.time() - window.start.timestamp())

    window_published.connect(note)
    scheduler = once(every(count, due, timedelta(seconds=1), apart))
    until = due + seconds - 0.02
    while (left := until - time.time()) > 0:
        time.sleep(max(min(scheduler.tick(), left), 0))
    all_of_them = sorted(value for values in found.values() for value in values)
    return {
        "sent": len(all_of_them), "expected": count * seconds,
        "p50": all_of_them[len(all_of_them) // 2], "p99": all_of_them[int(len(all_of_them) * 0.99)],
        "last": statistics.median(max(values) for values in found.values()),
    }  # fmt: skip


def history(windows: int) -> dict[str, Any]:
    """Bytes an entry that the server uses more, after so many windows of 200 entries have been done.

    And the server's CPU a window, µs, from claim to finish.
    """
    store = Store(Settings(redis_url=STORE))
    client = redis.Redis.from_url(STORE)
    for window in ClaimedWindows(store, 1, timedelta(hours=1), ago=timedelta(days=100)).publish():
        execute(store, window)
    client.flushdb()  # what it leaves are connections and scripts: no entry's
    before, used, server_cpu = client.info("memory")["used_memory"], 0.0, _cpu(client)
    claimed = ClaimedWindows(store, 200, timedelta(hours=1), ago=timedelta(days=100))
    for _ in range(windows):
        for window in claimed.publish():
            execute(store, window)
        used += _cpu(client) - server_cpu
        # As they do by themselves, ten minutes later.
        client.delete(*client.scan_iter("*:claim:*", count=1000), *client.scan_iter("*:run:*", count=1000))
        server_cpu = _cpu(client)
    return {
        "bytes": (client.info("memory")["used_memory"] - before) / 200,
        "server": used / windows / 200 * 1e6,
    }  # fmt: skip


def calls(windows: int) -> dict[str, Any]:
    """Begin and finish of so many windows, one after the other: µs of both, and of this process's CPU."""
    store = Store(Settings(redis_url=STORE))
    claimed = ClaimedWindows(store, 100, timedelta(hours=1), ago=timedelta(days=10))
    each, cpu = [], []
    for number in range(windows // 100):
        published = claimed.publish()
        clocks = Clocks()
        for window in published:
            execute(store, window)
        found = clocks.read()
        if number:  # the first ones connect, and load the scripts
            each.append(found["seconds"] * 1e4)
            cpu.append(found["cpu"] * 1e4)
    return {"each": statistics.median(each), "cpu": statistics.median(cpu)}


def execute(store: Store, window: WindowKey) -> None:
    """Begin and finish it."""
    begun = store.begin(window, OWNER, 60.0)
    assert isinstance(begun, Begun)
    store.finish(Ending(window, OWNER, begun.fence, "done"))


def _cpu(client: Any) -> float:
    """Seconds of CPU that the server has used."""
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def fill(**given: Any) -> dict[str, Any]:
    """Fill the queue for a worker; the parameters are those of :class:`Stretches`. Nothing is measured.

    Windows are claimed in the store, without a beat. A message without a window has as many headers as one of a window,
    of the same length.
    """
    stretches = Stretches(**given)
    claimed = ClaimedWindows(store_of(app), stretches.count, HOUR, ago=100 * HOUR)
    numbers = iter(range(stretches.total))
    with app.producer_pool.acquire() as producer:
        for kind in stretches.in_order:
            task = app.tasks[f"bench.{KINDS[kind]}{stretches.task}"]
            prefix = "once_" if kind == "windows" else "none_"
            for key in claimed.publish() if kind == "windows" else claimed.windows:
                sent_as = str(uuid.uuid4())
                headers = encode_headers(Window(key.entry, key.start, key.start + HOUR), sent_as)
                headers = {name.replace("once_", prefix): value for name, value in headers.items()}
                task.apply_async((next(numbers),), task_id=sent_as, headers=headers, producer=producer)
    return {}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    measure.__name__: measure
    for measure in (burst, share, start, many, stored, managed, idle, late, history, calls, fill)
}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    what, parameters = sys.argv[1:]
    print(json.dumps(MEASURES[what](**json.loads(parameters))))


if __name__ == "__main__":
    main()
