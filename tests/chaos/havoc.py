"""What befalls the system under chaos, in its time. All of it goes into the ledger.

A line of kind ``fault`` says what was done to whom (``of``: a process, or None for all) and to what effect: ``death``,
``flush``, ``out`` (out of contact with the store, until the line ``over`` with its number), ``slow`` (it reaches the
store, late, until then), or ``none`` that excuses anything.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partialmethod
from typing import Any

import redis
from chaos.cast import Cast, Member
from chaos.faults import Fault
from proxy import Link
from servers import RabbitServer, RedisServer


def method_of(kind: str) -> str:
    """The method of :class:`Havoc` that does it."""
    return "_" + kind.replace(",", "").replace(" ", "_").lower()


class NobodyError(Exception):
    """A fault finds nobody to befall."""


class Havoc:
    """Carries out a plan of faults on a cast.

    ``counts`` says how many of each kind, ``messages`` how many were doubled and purged.
    """

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.counts: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self._number = 0
        #: Messages that were seen, to be delivered again later.
        self._seen: list[Any] = []
        #: What takes long is done aside, that the rest goes on.
        self._aside = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []
        self._rng = random.Random(0)

    def play(self, plan: list[Fault], goes_on: Callable[[], bool]) -> None:
        """Do what is planned, in its time; start again what is gone."""
        begin = time.monotonic()
        coming = list(plan)
        while goes_on():
            while coming and coming[0].at <= time.monotonic() - begin:
                self.befall(coming.pop(0))
            self.cast.tend()
            self._watch_messages()
            time.sleep(0.1)
        self.cast.heal()
        for begun in self._begun:
            begun.result()

    def befall(self, fault: Fault) -> None:
        """Carry out one fault; one that finds nobody to befall isn't counted."""
        self._rng = random.Random(fault.who)
        self._number += 1
        with contextlib.suppress(NobodyError):
            getattr(self, method_of(fault.kind))(fault)
            self.counts[fault.kind] += 1

    def _need(self, there: object) -> None:
        if not there:
            raise NobodyError

    def _note(self, fault: Fault, effect: str, of: int | None, **more: Any) -> None:
        self.cast.ledger.write("fault", name=fault.kind, number=self._number, effect=effect, of=of, **more)

    def _lasts(self, fault: Fault, undo: Callable[[], None], *, aside: bool = False) -> None:
        """Noted before it begins by the caller, and here when it is over; ``aside``: its end takes long."""
        number = self._number

        def over() -> None:
            undo()
            self.cast.ledger.write("over", number=number)

        def begin() -> None:
            self._begun.append(self._aside.submit(over))

        self.cast.ending.append((time.monotonic() + fault.seconds, begin if aside else over))

    def _one(self, kind: str | None = None) -> Member:
        up = [member for member in self.cast.members if member.up and kind in (None, member.kind)]
        self._need(up)
        return self._rng.choice(up)

    def _kill(self, fault: Fault, kind: str) -> None:
        member = self._one(kind)
        member.proc.kill()
        self._note(fault, "death", member.proc.pid)
        self.cast.gone(member)

    _beat_killed, _worker_killed = partialmethod(_kill, kind="beat"), partialmethod(_kill, kind="worker")

    def _pool_child_killed(self, fault: Fault) -> None:
        member = next((m for m in self.cast.members if m.up and m.kind == "worker" and m.pool == "prefork"), None)
        children = member.proc.children() if member else []
        self._need(children)
        child = self._rng.choice(children)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        self._note(fault, "death", child)

    def _freeze(self, fault: Fault, kind: str) -> None:
        member = self._one(kind)
        proc = member.proc
        self._note(fault, "out", proc.pid)
        member.busy = True
        proc.signal(signal.SIGSTOP)

        def thaw() -> None:
            member.busy = False
            proc.resume()

        self._lasts(fault, thaw)

    _beat_frozen, _worker_frozen = partialmethod(_freeze, kind="beat"), partialmethod(_freeze, kind="worker")

    def _end(self, fault: Fault, kind: str) -> None:
        member = self._one(kind)
        self._note(fault, "none", member.proc.pid)
        proc = member.proc
        member.busy = True
        member.again_at = float("inf")
        proc.terminate()

        def gone() -> None:
            # A supervisor's patience: what doesn't end in its time is killed.
            if proc.alive:
                proc.kill()
                self._note(fault, "death", proc.pid)
            self.cast.gone(member)

        self.cast.ending.append((time.monotonic() + 5, gone))

    _beat_ended, _worker_ended = partialmethod(_end, kind="beat"), partialmethod(_end, kind="worker")

    def _store_killed_restarted_from_its_aof(self, fault: Fault) -> None:
        self._need(self._store_answers)
        self._note(fault, "out", None)
        self.cast.store.kill()
        self._lasts(fault, self.cast.store.restart)

    def _broker_killed(self, fault: Fault) -> None:
        self._need(self.cast.broker.answers)
        self._note(fault, "none", None)
        self.cast.broker.server.kill()
        self._lasts(fault, self.cast.broker.restart, aside=True)

    _broker_killed_restarted_from_its_aof = _broker_killed_restarted_with_its_durable_queues = _broker_killed

    @property
    def _store_answers(self) -> bool:
        return self.cast.store.alive and not self.cast.store.paused

    def _pause(self, fault: Fault, server: RedisServer | RabbitServer, effect: str) -> None:
        self._note(fault, effect, None)
        server.pause()
        self._lasts(fault, server.resume)

    def _store_frozen(self, fault: Fault) -> None:
        self._need(self._store_answers)
        self._pause(fault, self.cast.store, "out")

    def _broker_frozen(self, fault: Fault) -> None:
        self._need(self.cast.broker.answers)
        self._pause(fault, self.cast.broker.server, "none")

    def _store_slow(self, fault: Fault) -> None:
        self._need(self._store_answers)
        # Whoever waits may be let through last each time, and then no more.
        self._note(fault, "out", None)
        stop = threading.Event()

        def stutter() -> None:
            with self.cast.store.client() as client, contextlib.suppress(redis.RedisError):
                while not stop.wait(0.2):
                    client.execute_command("CLIENT", "PAUSE", 300, "ALL")

        threading.Thread(target=stutter, daemon=True).start()
        self._lasts(fault, stop.set)

    def _store_flushed(self, fault: Fault) -> None:
        self._need(self._store_answers)
        self._one("beat")  # without one nobody knows what is due until there is one: that is no fault of theirs
        try:
            with self.cast.store.client(socket_timeout=10) as client:
                client.flushall()
        except redis.RedisError as exc:
            raise NobodyError from exc
        self._note(fault, "flush", None)

    def _on_link(self, fault: Fault, link_of: str, effect: str, change: Callable[[Link], None]) -> None:
        member = self._one()
        link = getattr(member, link_of)
        self._note(fault, effect, member.proc.pid)
        change(link)
        self._lasts(fault, link.heal)

    _store_connections_cut = partialmethod(_on_link, link_of="store", effect="none", change=Link.cut)
    _store_black_hole = partialmethod(_on_link, link_of="store", effect="out", change=Link.darken)
    _replies_of_the_store_lost = partialmethod(_on_link, link_of="store", effect="out", change=Link.deafen)
    _broker_connections_cut = partialmethod(_on_link, link_of="broker", effect="none", change=Link.cut)
    _broker_black_hole = partialmethod(_on_link, link_of="broker", effect="none", change=Link.darken)

    def _store_link_slow(self, fault: Fault) -> None:
        delay = self._rng.uniform(0.02, 0.3)
        self._on_link(fault, "store", "slow", lambda link: setattr(link, "delay", delay))

    def _clock_jumps(self, fault: Fault) -> None:
        clocks = [member for member in self.cast.members if member.clock and member.up]
        self._need(clocks)
        member = self._rng.choice(clocks)
        self._note(fault, "none", member.proc.pid)
        member.proc.set_clock_offset(self._rng.choice((-1, 1)) * self._rng.uniform(0.5, 60))

    def _messages_doubled(self, fault: Fault) -> None:
        """What waits, what is being executed, and what has been executed before: delivered once more."""
        self._need(self._seen and self.cast.broker.answers)
        again = self._rng.sample(self._seen, min(10, len(self._seen)))
        try:
            self.cast.broker.put(self.cast.system.queue, again)
        except self.cast.broker.errors as exc:
            raise NobodyError from exc
        self._note(fault, "none", None, messages=len(again))
        self.messages["doubled"] += len(again)

    def _queue_purged(self, fault: Fault) -> None:
        """What waits is lost; where workers are too quick for that, they find the broker empty for a while."""
        self._note(fault, "none", None)
        stop = threading.Event()

        def purge() -> None:
            with contextlib.suppress(*self.cast.broker.errors):
                for lost in self.cast.broker.purge(self.cast.system.queue, stop):
                    self.messages["purged"] += lost

        threading.Thread(target=purge, daemon=True).start()
        self._lasts(fault, stop.set)

    def _watch_messages(self) -> None:
        """Remember some of the messages, to deliver them again later."""
        if not self.cast.broker.answers:
            return
        with contextlib.suppress(*self.cast.broker.errors):
            self._seen = [*self._seen, *self.cast.broker.see(self.cast.system.queue)][-200:]
