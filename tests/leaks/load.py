"""One beat and one worker with one child, under as much load as they bear."""

from __future__ import annotations

from pathlib import Path

from leaks.usage import Sample, look_at
from ledger import Ledger
from processes import Processes, wait_until
from servers import RedisServer
from system import System

QUEUE = "leaks"
#: Messages that may wait: more than this, and nothing is claimed until a worker on a slow machine has caught up.
LONG = 2000
#: A machine that others use too may be slow: waiting ends when nothing at all goes on.
PATIENCE = 120


class Load:
    """Over a store and a broker of their own, which may be one server."""

    def __init__(
        self, procs: Processes, directory: Path, store: RedisServer, broker: RedisServer, *, entries: int = 200,
        **env: str,
    ) -> None:  # fmt: skip
        self.server, self.broker = store, broker
        self.names = [f"entry-{number:03d}" for number in range(entries)]
        self.clients_before = self.clients()
        system = System(procs, Ledger(directory / "ledger.jsonl"), store.url(), directory)
        self.store = system.store
        self.paused = False
        system.app, system.broker_url, system.queue, system.entries = "apps.leak_app", broker.url(1), QUEUE, entries
        self.worker = system.worker(env=env, loglevel="WARNING")
        self.beat = system.beat(loglevel="WARNING", **env)
        wait_until(self.done, "a first window is done", PATIENCE)

    def clients(self) -> int:
        """Connections to the servers, besides those that count them."""
        count = 0
        for server in {self.server, self.broker}:
            with server.client() as client:
                count += len(client.client_list()) - 1
        return count

    def done(self) -> int:
        """How many windows are done."""
        with self.server.client() as client, client.pipeline(transaction=False) as pipe:
            for name in self.names:
                pipe.hget(self.store.entry_key(name), "c:done")
            return sum(int(count or 0) for count in pipe.execute())

    def outcomes(self) -> set[str]:
        """Which outcomes there are."""
        accounts = [self.store.account(name) for name in self.names]
        return {outcome for account in accounts if account for outcome in account.counts}

    def waiting(self) -> int:
        with self.broker.client(1) as client:
            return client.llen(QUEUE) + client.hlen("unacked")

    def pause(self) -> None:
        for name in [] if self.paused else self.names:
            self.store.set_paused(name, paused=True)
        self.paused = True

    def resume(self) -> None:
        for name in self.names if self.paused else []:
            self.store.set_paused(name, paused=False)
        self.paused = False

    def sample(self) -> Sample:
        (child,) = self.worker.children()
        processes = {"beat": look_at(self.beat.pid), "worker": look_at(self.worker.pid), "child": look_at(child)}
        with self.server.client() as client:
            return Sample(self.done(), processes, client.dbsize(), client.info("memory")["used_memory"])

    def run(self, windows: int) -> list[Sample]:
        """Let so many more windows be done; returns what was in use on the way."""
        self.resume()
        samples = [self.sample()]
        while samples[-1].windows < samples[0].windows + windows:
            goal = min(samples[-1].windows + max(windows // 100, 25), samples[0].windows + windows)
            wait_until(lambda goal=goal: self._reaches(goal), f"{goal} windows done", PATIENCE, every=0.5)
            samples.append(self.sample())
        return samples

    def _reaches(self, goal: int) -> bool:
        waiting = self.waiting()
        if waiting > LONG:
            self.pause()
        elif waiting < LONG / 2:
            self.resume()
        return self.done() >= goal

    def rest(self) -> Sample:
        """Claim no more, wait until nothing is left to do and all markers are gone; returns what is in use then."""
        self.pause()
        wait_until(lambda: not self.waiting(), "nothing is waiting", PATIENCE, every=0.2)
        wait_until(lambda: not self._markers(), "no marker is left", PATIENCE, every=0.2)
        return self.sample()

    def at_rest(self) -> tuple[Sample, int]:
        """As :meth:`rest`, with the servers' connections, at a moment when none is being made or closed."""

        def look() -> tuple[Sample, int] | None:
            connections, sample = self.clients(), self.rest()
            still = connections == self.clients() and sample.held() == self.sample().held()
            return (sample, connections) if still else None

        return wait_until(look, "connections stay as they are", PATIENCE)

    def keys(self) -> set[str]:
        """What the store has, but for the names of workers: each shard gets these now and then, sooner or later."""
        with self.server.client() as client:
            return {key for key in client.scan_iter(count=1000) if not key.endswith(":workers")}

    def _markers(self) -> list[str]:
        with self.server.client() as client:
            return [key for key in client.scan_iter(count=1000) if ":claim:" in key or ":run:" in key]

    def end(self) -> None:
        """End both; the servers have no connection left of them."""
        self.store.close()
        assert self.beat.stop(60) == 0
        assert self.worker.stop(60) == 0
        wait_until(lambda: self.clients() == self.clients_before, "their connections are closed", 30)
