"""What stands in the place of the machine's: sleeping, threads, queues, names and random numbers.

The package and Celery run as they are. What they ask the machine for comes from the simulated process that runs. Clocks
aren't among it: those are the machine's own, which stand still (``standing_clock``).
"""

from __future__ import annotations

import atexit
import queue
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import ref

import celery.app.trace
import celery.utils.nodenames
import celery.worker.request
import kombu.pools
import kombu.utils.functional
from celery.utils.collections import LimitedSet
from greenlet import getcurrent

from celery_once_beat import background, identity
from celery_once_beat.beat import outgoing, scheduler, stopping
from celery_once_beat.features.keyed import task as keyed
from celery_once_beat.features.orders import orders  # noqa: F401  # it is loaded before anything is replaced
from celery_once_beat.features.reserved import worker as reserved
from celery_once_beat.store import verbs
from celery_once_beat.worker import duties, errands, leases, put_back, task
from celery_once_beat.worker import request as worker_request  # noqa: F401  # as above

from .kernel import Box, Gate, Process, ticks

if TYPE_CHECKING:
    from .world import World

_real_sleep = time.sleep


class _Here:
    """The world that runs; there is one at a time."""

    world: World


def let_run(world: World) -> None:
    """Let what is installed ask this world from now on."""
    _Here.world = world


def _process() -> Process:
    return _Here.world.process


def _sleep(seconds: float) -> None:
    world = getattr(_Here, "world", None)
    if world is None or world.kernel.current is None:
        _real_sleep(seconds)
        return
    world.kernel.sleep(ticks(seconds))


class _Thread:
    """``threading.Thread`` of the process that starts it."""

    def __init__(self, target: Any, name: str = "thread", daemon: bool = False) -> None:
        self._target, self._name = target, name

    def start(self) -> None:
        _process().start(self._name, self._target)


class _Lock:
    """Nothing that these locks guard waits, so nobody else comes in."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Condition(_Lock):
    """``threading.Condition``."""

    def __init__(self) -> None:
        self._notified = Gate(_Here.world.kernel)

    def notify(self) -> None:
        self._notified.set()

    def wait_for(self, met: Any, timeout: float) -> Any:
        while not met():
            self._notified.clear()
            if not self._notified.wait(timeout):
                break
        return met()


class _Event(Gate):
    """``threading.Event``."""

    def __init__(self) -> None:
        super().__init__(_Here.world.kernel)


_threading = SimpleNamespace(
    Thread=_Thread,
    Lock=_Lock,
    Condition=_Condition,
    Event=_Event,
    current_thread=lambda: None,
    main_thread=threading.main_thread,
)
_queue = SimpleNamespace(SimpleQueue=lambda: Box(_Here.world.kernel, queue.Empty), Empty=queue.Empty)


class _OrderedSet(dict[Any, None]):
    """A set whose order is that in which it was filled, and not that of addresses."""

    remove = dict.__delitem__

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def copy(self) -> _OrderedSet:
        return _OrderedSet(self)

    def difference(self, others: Iterable[Any]) -> _OrderedSet:
        left = _OrderedSet(self)
        left.difference_update(others)
        return left

    def difference_update(self, others: Iterable[Any]) -> None:
        for item in others:
            self.pop(item, None)


class _OfGreenlets:
    """A ``threading.local`` for simulated threads: each has an object of its own, of its class but for the base."""

    def __init__(self, local: threading.local) -> None:
        of_class = {name: what for name, what in vars(type(local)).items() if name not in ("__dict__", "__weakref__")}
        vars(self)["_make"] = type(type(local).__name__, (), of_class)

    def _own(self) -> Any:
        made = vars(getcurrent()).setdefault("once_local", {})
        if self not in made:
            made[self] = self._make()
        return made[self]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


class _SignalOfProcess:
    """A signal of Celery's whose receivers hear of their own process alone."""

    def __init__(self, signal: Any) -> None:
        self._signal = signal
        self._connected: dict[Any, Any] = {}

    def connect(self, receiver: Any, weak: bool = False) -> None:
        process = _process()

        def of_process(**given: Any) -> None:
            if _process() is process:
                receiver(**given)

        self._connected[receiver] = of_process
        self._signal.connect(of_process, weak=False)

    def disconnect(self, receiver: Any) -> None:
        self._signal.disconnect(self._connected.pop(receiver))


class ReservedRequests(_OrderedSet):
    """Celery's ``state.reserved_requests`` of one worker; a set of weak references in the order of addresses there."""

    @property
    def data(self) -> list[Any]:
        return list(self)

    def add(self, request: Any) -> None:
        super().add(ref(request))

    def discard(self, request: Any) -> None:
        super().discard(ref(request))


class _State:
    """``celery.worker.state`` of the worker that runs."""

    should_stop = should_terminate = None
    #: How many it executes is for people alone.
    active_requests = ()

    @property
    def reserved_requests(self) -> Any:
        return _process().kept.setdefault("reserved", ReservedRequests())


class _Revoked:
    """The task ids that the worker that runs won't execute any more."""

    def _own(self) -> LimitedSet:
        own: LimitedSet = _process().kept.setdefault("revoked", LimitedSet(maxlen=50_000, expires=10_800))
        return own

    def add(self, task_id: str) -> None:
        self._own().add(task_id)

    def discard(self, task_id: str) -> None:
        self._own().discard(task_id)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._own()


def _uniform(low: float, high: float) -> float:
    return _process().random.uniform(low, high)


def _of_package(kind: type) -> list[tuple[Any, str, Any]]:
    """Module, name and value of what the package's modules keep in an object of this class."""
    return [
        (module, name, value)
        for module_name, module in sorted(sys.modules.items())
        if module_name.partition(".")[0] == "celery_once_beat"
        for name, value in vars(module).items()
        if isinstance(value, kind)
    ]


#: What a module keeps for its process, and what that is at first. Sets that fill: the reasons that it has logged.
_KEPT = [(put_back, "_free_at", put_back._free_at), *(kept for kept in _of_package(set) if not kept[2])]


def _switch(before: Process | None, after: Process) -> None:
    """Give each process the globals that it would have of its own."""
    for module, name, at_first in _KEPT:
        key = module.__name__, name
        if before is not None:
            before.kept[key] = getattr(module, name)
        if key not in after.kept:
            after.kept[key] = copy(at_first)
        setattr(module, name, after.kept[key])


_last: Process | None = None


def on_switch(process: Process) -> None:
    """Called before a thread of another process runs."""
    global _last  # noqa: PLW0603  # of this module
    _switch(_last, process)
    _last = process


def forget() -> None:
    """Keep nothing of a world that is over: its processes have the ids that those of the next one get."""
    global _last  # noqa: PLW0603  # of this module
    _last = None
    for of_process in (leases.leases_of, leases._tasks, errands.errands_of):
        of_process.clear()
    kombu.pools.reset()


def install() -> None:
    """Replace it, for the rest of this process."""
    time.sleep = _sleep
    kombu.utils.functional.sleep = _sleep
    uuid4 = lambda: uuid.UUID(int=_process().random.getrandbits(128), version=4)  # noqa: E731
    for module in (background, duties, leases):
        module.threading = _threading
    stopping.threading = SimpleNamespace(current_thread=lambda: None, main_thread=lambda: 1)
    leases.queue = _queue
    leases.set = _OrderedSet
    duties.state = reserved.state = _State()
    duties.name_broker = scheduler.name_broker = lambda connection: "one"  # each process has a URL of its own
    celery.worker.request.revoked_tasks = _Revoked()
    outgoing.before_task_publish = _SignalOfProcess(outgoing.before_task_publish)
    instead: dict[Any, _OfGreenlets] = {}
    for module, name, local in _of_package(threading.local):
        setattr(module, name, instead.setdefault(local, _OfGreenlets(local)))  # several modules may have it
    random_bytes = lambda number: _process().random.getrandbits(8 * number).to_bytes(number, "big")  # noqa: E731
    identity.os = background.os = leases.os = SimpleNamespace(getpid=lambda: _process().pid, urandom=random_bytes)
    identity.socket = SimpleNamespace(gethostname=lambda: _process().name)
    put_back.random = SimpleNamespace(uniform=_uniform)
    verbs.uuid4 = uuid4
    keyed.uuid = SimpleNamespace(uuid4=uuid4)
    # Of calls without a window: none of the package's, and in no order.
    task.uuid = SimpleNamespace(uuid4=uuid4)
    celery.app.trace.gethostname = celery.utils.nodenames.gethostname = lambda: "simulated"
    # What simulated processes leave behind is nobody's when the real one ends.
    atexit.unregister(leases._record_all)
    atexit.unregister(errands._finish_all)
    random.seed(0)
