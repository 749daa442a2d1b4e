"""The simulated processes: beats, workers with their children, and people who edit schedules.

A beat is the package's scheduler, called as Celery's ``beat.Service`` calls it. A worker is Celery's own request and
tracer with a pool of ours between them: what a worker's consumer, its timer and its pool do is written here, after
``celery.worker``.
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode
from datetime import timedelta
from functools import partial, partialmethod
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import ref

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery, Task
from celery.exceptions import Reject, Retry, TaskRevokedError
from celery.schedules import crontab, schedule
from celery.worker.request import Request
from kombu.message import Message as KombuMessage

from celery_once_beat import OnceScheduler, OnceTask, Schedules
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.features import FEATURES
from celery_once_beat.features.reserved.worker import Reserved, read_waiting
from celery_once_beat.store import store_of
from celery_once_beat.windows import decode_headers
from celery_once_beat.worker import leases
from celery_once_beat.worker.duties import do_duties, report_queues
from celery_once_beat.worker.request import OnceRequest

from .installed import ReservedRequests
from .kernel import SECOND, Box, Killed, Process, ticks
from .network import Connection
from .world import CHILD, TELL, start_of

if TYPE_CHECKING:
    from .broker import Message
    from .world import World

#: Seconds: no body takes longer while its process runs.
LONGEST = 12.0
_EMPTY = type("_Empty", (Exception,), {})


def celery_schedule(entry: dict[str, Any]) -> Any:
    """The schedule of an entry's description, as Celery has it."""
    if entry["kind"] == "crontab":
        return crontab()
    return schedule(timedelta(seconds=entry["every"]))


def once_options(entry: dict[str, Any]) -> dict[str, Any]:
    """The ``once`` option of an entry."""
    names = (
        "catch_up", "max_attempts", "grace", "recover", "retry_failed_after", "overlap", "lease", "tracked",
        "start_timeout", "tolerance", "limit", "deadline", "on_failure",
    )  # fmt: skip
    return {name: entry[name] for name in names if entry.get(name) is not None}


def beat_schedule(entries: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            "task": f"sim.{entry['task']}",
            "schedule": celery_schedule(entry),
            "kwargs": {"entry": name},
            "options": {"once": once_options(entry), **({"expires": entry["expires"]} if entry.get("expires") else {})},
        }
        for name, entry in entries.items()
    }


def make_app(world: World, entries: dict[str, Any]) -> Celery:
    """The app of one process."""
    # A URL of its own: kombu keeps one pool of connections for all that have the same.
    app = Celery("sim", set_as_current=False, broker=f"simulated://{world.process.name}/")
    settings = world.settings
    app.conf.update(
        once_beat_redis_url="redis://127.0.0.1:1/0",
        once_beat_redis_options={"connection_class": Connection},
        beat_schedule=beat_schedule(entries),
        timezone="UTC",
        task_ignore_result=True,
        **{f"once_beat_{name}": value for name, value in settings["once"].items()},
    )

    def body(task: Any, entry: str) -> Any:
        return run_body(world, task, entry)

    def child_body(task: Any) -> Any:
        return run_body(world, task, task.window.entry)

    late = settings["acks_late"]
    for name, base, more in (
        ("once", OnceTask, {"acks_late": late}),
        ("early", OnceTask, {"acks_late": False}),
        ("late", OnceTask, {"acks_late": True, "reject_on_worker_lost": settings["reject_on_worker_lost"]}),
        ("plain", Task, {"acks_late": False}),
    ):
        app.task(body, name=f"sim.{name}", bind=True, base=base, max_retries=3, shared=False, **more)
    app.task(tell, name=TELL, shared=False)
    app.task(child_body, name=CHILD, bind=True, base=OnceTask, acks_late=late, shared=False)
    app.finalize()
    return app


def tell(entry: str, start: str, outcome: str, error: str) -> None:
    """The broker has noted what it says."""


def run_body(world: World, task: Any, entry: str) -> Any:
    """What every task does: it takes its time, and ends in one of the ways in which a body can end."""
    process = world.process
    window = getattr(task, "window", None)
    if window is None or not window.scheduled:
        window = decode_headers(vars(task.request))
    start = start_of(window.start)
    told = world.told.get(entry, {})
    world.begun[entry, start] += 1
    number = world.begun[entry, start]
    draw = random.Random(f"{world.seed}/{entry}/{start}/{number}")
    execution = world.started(process, entry, start, window.fence)
    world.check_retry(process, window, start, task.request.retries)
    began = world.at
    world.check_held(process, window, began, begins=True)
    world.beginning = entry, start
    world.step(process, "body begins")
    world.check_held(process, window, began)
    seconds = draw.expovariate(1 / told.get("takes", 0.3))
    if draw.random() < told.get("long", 0.0):
        seconds += world.settings["lease"] * draw.uniform(0.8, 2.5)
    until = world.kernel.now + round(min(seconds, LONGEST - 1.0) * SECOND)
    while world.kernel.now < until:
        world.kernel.sleep(min(until - world.kernel.now, SECOND))
        world.check_held(process, window, began)
    if told.get("child"):
        child = f"child:{CHILD}@{entry}:of it", start
        world.children.setdefault(child, inf)
        try:
            task.app.tasks[CHILD].apply_once(key="of it", window=window, tracked=True)
        except OnceError:
            world.ended(process, execution, "failed", final=True)
            raise
        world.children[child] = world.at
    world.step(process, "body ends")
    way = draw.random()
    if way < told.get("fails", 0.0):
        world.ended(process, execution, "failed", final=True)
        raise ValueError("a body that fails")
    if way < told.get("fails", 0.0) + told.get("retries", 0.0) and task.request.retries < 3:
        world.ended(process, execution, "retried")
        countdown, asked = draw.choice([0, 0.5, 2.0]), world.at
        try:
            raise task.retry(countdown=countdown)
        except Retry:
            world.handed_over(process, window, start, task.request.retries + 1, asked, countdown)
            raise
    if way > 1 - told.get("rejects", 0.0) and number < 4:
        world.ended(process, execution, "retried")
        raise Reject("a body that gives its message back", requeue=True)
    world.ended(process, execution, "done")
    return None


class Beat:
    """One beat process."""

    role = "beat"

    def __init__(self, world: World, name: str, place: str, entries: dict[str, Any]) -> None:
        self.world = world
        self.entries = entries
        self.process = Process(world.kernel, name)
        self.process.kept["places"] = (place,)
        world.up((place,))
        self.stopping = False
        self.scheduler: Any = None
        self.process.start("beat", self._run)

    def _run(self) -> None:
        app = make_app(self.world, self.entries)
        scheduler = self.scheduler = OnceScheduler(app=app)
        kernel = self.world.kernel
        while not self.stopping:
            interval = scheduler.tick()
            self.world.step(self.process, "tick")
            if interval and interval > 0.0:
                kernel.sleep(ticks(interval))
        scheduler.close()
        self.world.kill(self.process, "stopped")

    def stop(self) -> None:
        """End in order."""
        self.stopping = True


class Child:
    """What runs bodies: a child of a prefork pool, or a thread of the worker itself."""

    def __init__(self, worker: Worker, process: Process, app: Celery | None = None) -> None:
        self.worker, self.process, self.app = worker, process, app
        self.job: Any = None
        process.start("body", self._run)

    def _run(self) -> None:
        worker = self.worker
        self.app = self.app or make_app(worker.world, {})  # that of a process of its own is made in it
        while True:
            self.job = None
            job = self.job = worker.jobs.get()
            worker.world.wait(-1, "worker")
            worker.inbox.put(("accepted", job, worker.world.kernel.now))
            worker.world.step(self.process, "accepted")
            try:
                result = job.target(*job.args, app=self.app)
            except Killed:
                raise
            except BaseException:  # noqa: BLE001  # Reject, mostly
                worker.inbox.put(("raised", job, ExceptionInfo()))
            else:
                worker.inbox.put(("returned", job, result))


class Job:
    """What the pool was given."""

    def __init__(self, request: Any, target: Any, args: Any, callbacks: dict[str, Any]) -> None:
        self.request, self.target, self.args, self.callbacks = request, target, args, callbacks
        self.begun = self.over = False


class Worker:
    """One worker: its main process, and its children if it has any."""

    role = "worker"

    def __init__(self, world: World, name: str, places: tuple[str, ...], *, children: int, prefork: bool) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.kernel, name)
        self.process.kept["places"] = places
        #: Those of children that there aren't.
        self._free = list(places)
        world.up(places)
        self.prefork = prefork
        self.inbox = Box(world.kernel, _EMPTY)
        #: What its pool was given and hasn't begun; the world knows how many wait.
        self.jobs = Box(world.kernel, _EMPTY)
        self.children: list[Child] = []
        self._number = 0
        self._wanted = children
        self.consumer: Any = None
        self.app: Any = None
        self.stopping = False
        self.active = 0
        self._duties: Any = None
        #: As Celery's consumer has them.
        self.hostname, self.task_consumer = f"celery@{name}", None
        self.process.start("main", self._run)

    def _run(self) -> None:
        world = self.world
        self.app = make_app(world, {})
        for _ in range(self._wanted):
            self._add_child()
        duties: list[Any] = [partial(report_queues, ref(self))]
        if "reserved" in FEATURES:
            duties.append(Reserved(read_waiting).check)
        self._connect()
        self._duties = do_duties(self.app, self.hostname, duties)
        while True:
            what, *rest = self.inbox.get()
            if what == "stop":
                break
            getattr(self, f"_on_{what}")(*rest)
        self._shut_down()

    def _connect(self) -> None:
        self.task_consumer = SimpleNamespace(queues=[SimpleNamespace(name=self.app.conf.task_default_queue)])
        self.consumer = self.world.broker.consume(
            self.process, self._wanted * self.world.settings["prefetch"],
            lambda tag, message: self.inbox.put(("message", self.consumer, tag, message)),
        )  # fmt: skip

    _on_reconnect = _connect

    def _add_child(self) -> None:
        if not self.prefork:
            self.children.append(Child(self, self.process, self.app))
            return
        self._number += 1
        process = Process(self.world.kernel, f"{self.name}.{self._number}")
        process.skew, process.suspended = self.process.skew, self.process.suspended
        process.kept["places"] = (self._free.pop(0),)
        self.world.up(process.kept["places"])
        self.children.append(Child(self, process))

    @property
    def processes(self) -> list[Process]:
        return [self.process, *(child.process for child in self.children if child.process is not self.process)]

    # -- what its main process is told

    def _on_message(self, consumer: Any, tag: int, message: Message) -> None:
        if consumer.gone:
            return
        payload = json.loads(message.text)
        properties = payload["properties"]
        body = payload["body"]
        settle = partial(self.world.broker.settle, consumer, tag)
        delivery_info = {**properties.get("delivery_info", {}), "redelivered": message.redelivered}
        kombu = KombuMessage(
            body=b64decode(body), delivery_tag=tag, content_type=payload["content-type"],
            content_encoding=payload["content-encoding"], headers=payload["headers"], properties=properties,
            delivery_info=delivery_info, postencode="utf-8",
        )  # fmt: skip
        task = self.app.tasks.get(payload["headers"]["task"])
        request_class = OnceRequest if isinstance(task, OnceTask) else Request
        request = request_class(
            kombu, app=self.app, hostname=self.hostname, task=task, body=kombu.body, headers=kombu.headers,
            on_ack=lambda *_: settle(), on_reject=lambda _l, _e, requeue: settle(requeue=requeue),
        )  # fmt: skip
        if request.expires and request.revoked():
            return
        if request.eta:
            seconds = request.eta.timestamp() - time.time()
            if seconds > 0:
                consumer.waiting += 1

                def due() -> None:
                    consumer.waiting -= 1
                    self.inbox.put(("due", request))

                self._call_later(seconds, due)
                return
        self._on_due(request)

    def _call_later(self, seconds: float, function: Any) -> None:
        kernel = self.world.kernel

        def run() -> None:
            kernel.sleep(ticks(seconds))
            function()

        self.process.start("timer", run)

    def _on_due(self, request: Any) -> None:
        self._reserved_requests().add(request)
        try:
            request.execute_using_pool(self)
        except TaskRevokedError:
            self._reserved_requests().discard(request)

    def _reserved_requests(self) -> Any:
        return self.process.kept.setdefault("reserved", ReservedRequests())

    def apply_async(self, target: Any, args: Any = (), correlation_id: str = "", **callbacks: Any) -> Any:
        """As a pool's."""
        self.active += 1
        self._queue(Job(callbacks["callback"].__self__, target, args, callbacks))

    def _queue(self, job: Job) -> None:
        self.world.wait(1, "worker")
        self.jobs.put(job)

    def _on_accepted(self, job: Job, at: int) -> None:
        if job.over:
            return
        job.begun = True
        self.world.step(self.process, "accept")
        if job.request.time_start is None:
            job.callbacks["accept_callback"](1, time.monotonic())

    def _on_ended(self, callback: str, job: Job, result: Any) -> None:
        if not job.over:
            self._over(job)
            self.world.step(self.process, "result")
            job.callbacks[callback](result)

    _on_returned, _on_raised = partialmethod(_on_ended, "callback"), partialmethod(_on_ended, "error_callback")

    def _over(self, job: Job) -> None:
        job.over = True
        self.active -= 1
        self._reserved_requests().discard(job.request)

    def _on_lost(self, child: Child, job: Job | None) -> None:
        """A child has died."""
        if child in self.children:
            self.children.remove(child)
            self._free += self.world.places(child.process)
            self._add_child()
        if job is None or job.over:
            return
        if not job.begun:
            self._queue(job)
            return
        self._over(job)
        try:
            raise WorkerLostError("Worker exited prematurely: signal 9 (SIGKILL)")  # noqa: TRY301  # for its traceback
        except WorkerLostError:
            info = ExceptionInfo()
        job.callbacks["error_callback"](info)

    def kill_child(self, process: Process, *, unseen: bool = False) -> None:
        """SIGKILL to a child; its worker lives. ``unseen``: it reads of that before what it hasn't read yet."""
        for child in self.children:
            if child.process is process and process is not self.process:
                job = child.job
                self.world.kill(process, "child killed")
                # The pool may see its death before it knows what the child had.
                first = unseen or self.world.kernel.random.getrandbits(1)
                heard = self.world.kernel.now + self.world.latency()
                self.world.kernel.call_at(heard, partial(self.inbox.put, ("lost", child, job), first=bool(first)))

    def lose_broker(self) -> None:
        """Its connection to the broker breaks, and it connects again: acknowledgements of before are worth nothing."""
        if self.consumer is None:
            return
        self.world.broker.lose(self.consumer)
        self.inbox.put(("reconnect",))

    # -- its end

    def stop(self) -> None:
        """End in order: nothing new is begun, what runs ends."""
        if not self.stopping:
            self.stopping = True
            self.world.struck("cut", "stopping", self.process, until=self.world.at + 15.0, **{"from": "broker"})
            self.inbox.put(("stop",))

    def _shut_down(self) -> None:
        world, kernel = self.world, self.world.kernel
        self._duties.set()
        self.task_consumer = None
        # What isn't begun goes back; what runs ends.
        while True:
            try:
                job = self.jobs.get_nowait()
            except _EMPTY:
                break
            world.wait(-1, "worker")
            self._over(job)
        world.broker.cancel(self.consumer)
        until = kernel.now + 120 * SECOND
        while self.active and kernel.now < until:
            try:
                what, *rest = self.inbox.get(timeout=(until - kernel.now) / SECOND)
            except _EMPTY:
                break
            if what in ("accepted", "returned", "raised", "lost"):
                getattr(self, f"_on_{what}")(*rest)
        for child in self.children:
            if child.process is not self.process:
                child.process.start("exit", partial(self._exit, child.process))
        self._exit_leases(self.app)
        kernel.sleep(SECOND // 10)
        world.broker.lose(self.consumer, in_order=True)
        world.down(self.process, "stopped")
        for process in self.processes[::-1]:
            world.kill(process, noted=True)

    def _exit(self, process: Process) -> None:
        for child in self.children:
            if child.process is process:
                self._exit_leases(child.app)

    def _exit_leases(self, app: Any) -> None:
        if app is not None:
            leases.leases_of.of(store_of(app)).record_all()

    @property
    def dead(self) -> bool:
        return self.process.dead


class Editor:
    """Somebody who edits schedules and gives orders, from a process of their own."""

    role = "editor"

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(world.kernel, name)
        self.todo = Box(world.kernel, _EMPTY)
        self.process.start("editor", self._run)

    def _run(self) -> None:
        schedules = Schedules(make_app(self.world, {}))
        while True:
            do = self.todo.get()
            for _ in range(8):  # until it is acknowledged, or known not to be possible
                try:
                    do(schedules)
                except OnceError as exc:
                    self.world.happened(f"an edit's {type(exc).__name__}")
                    if isinstance(exc, StoreUnavailableError):
                        self.world.kernel.sleep(SECOND)
                        continue
                break
