"""Tries mutants: a plugin of pytest's that collects once, and forks a process for each mutant.

First all tests run as things are, so that it is known what each of them calls, and how long it takes. A mutant meets
those that call what it changes, up to the first that fails: first the quick ones, and those that have found others of
its file.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import select
import signal
import subprocess
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
from servers import RedisServer

TESTS = Path(__file__).parent.parent
#: How the last test is called.
LAST = "the last test"
#: A mutant has so many times as long as its tests take, and some seconds more.
PATIENCE, MORE = 10, 120


@dataclass(frozen=True)
class Mutant:
    """``name`` is what its part knows it by."""

    path: str
    line: int
    was: str
    now: str
    name: str


@dataclass(frozen=True)
class Change:
    """What a mutant changes: a test finds it that comes by any of these places. A server has to take scripts."""

    of: Collection[str]
    scripts: Collection[str] = ()


@dataclass(frozen=True)
class Verdict:
    """``status``: killed, timeout, survived, unreached (no test calls it), nothing (it changes nothing), no Lua."""

    path: str
    line: int
    was: str
    now: str
    status: str
    #: The test that failed.
    by: str
    seconds: float


class Part(Protocol):
    """What is mutated."""

    def noting(self) -> AbstractContextManager[Callable[[], set[str]]]:
        """Called within, it returns what was called since the last time."""
        ...

    def with_it(self, mutant: Mutant) -> AbstractContextManager[Change]: ...

    def last_test(self) -> list[str]:
        """A command that fails of a mutant which no test has found; none if it is empty."""
        ...


class Trial:
    """``write`` gets each verdict; the file ``known`` keeps what is known of the tests as long as ``of_code`` is so."""

    def __init__(
        self, part: Part, mutants: Iterable[Mutant], known: Path, of_code: float, write: Callable[[Verdict], object]
    ) -> None:
        self.part, self.mutants, self.known, self.of_code, self.write = part, mutants, known, of_code, write
        self.server: RedisServer | None = None
        self.failed = ""
        #: What each test calls and how long it takes; what found the mutants of each file.
        self.calls: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self.found: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """The first random example that fails is enough; a smaller one isn't looked for."""
        import hypothesis  # not earlier: pytest wants to rewrite it

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("trial", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("trial")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """One kind of server will do, and processes that a test starts don't know the mutant."""
        items[:] = [item for item in items if not _left_out(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]):
        value = yield
        if isinstance(value, RedisServer) and fixturedef.scope == "session":
            self.server = value
        return value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        # The session's server is of this process. Tests run in others, so that all find things as they were.
        self._run(next(item for item in session.items if {"any_url", "redis_url"} & {*item.fixturenames}))
        self._know(session.items)
        print(f"{len(session.items)} tests, {sum(self.seconds.values()):.0f} s", flush=True)
        if self._last_test() != "survived":
            raise pytest.UsageError("the last test fails without any mutant")
        gc.collect()
        gc.freeze()  # what is there is shared with each process
        for mutant in self.mutants:
            status, by, seconds = self._try(mutant, session.items)
            self.found[mutant.path][by] += 1
            self.write(Verdict(mutant.path, mutant.line, mutant.was, mutant.now, status, by, round(seconds, 1)))
        return True

    def _run(self, item: pytest.Item) -> None:
        item.ihook.pytest_runtest_protocol(item=item, nextitem=item.session)  # the session's server goes on

    def _know(self, items: list[pytest.Item]) -> None:
        """What each test calls and how long it takes; what is known of those that haven't changed is kept."""
        kept = json.loads(self.known.read_text()) if self.known.exists() else {}
        stamps = {item.nodeid: f"{inspect.getsource(item.function)} {self.of_code}" for item in items}
        new = [item for item in items if kept.get(item.nodeid, [""])[0] != stamps[item.nodeid]]

        def run() -> object:
            found = {}
            with self.part.noting() as called:
                called()
                for item in new:
                    begun = time.monotonic()
                    self._run(item)
                    if self.failed:
                        return self.failed
                    seconds = round(time.monotonic() - begun, 3)
                    found[item.nodeid] = [stamps[item.nodeid], sorted(called()), seconds]
            return found

        found, _ = _in_a_process(run, 3600)
        if not isinstance(found, dict):
            raise pytest.UsageError(f"{found} fails without any mutant")
        kept |= found
        self.known.write_text(json.dumps(kept))
        for item in items:
            _, called, self.seconds[item.nodeid] = kept[item.nodeid]
            self.calls[item.nodeid] = set(called)

    def _try(self, mutant: Mutant, items: list[pytest.Item]) -> tuple[str, str, float]:
        with self.part.with_it(mutant) as change:
            if not change.of:
                return "nothing", "", 0.0
            if not all(map(self._compiles, change.scripts)):
                return "no Lua", "", 0.0
            reached = [item for item in items if not self.calls[item.nodeid].isdisjoint(change.of)]
            found = self.found[mutant.path]
            reached.sort(key=lambda item: self.seconds[item.nodeid] / (1 + 4 * found[item.nodeid]))

            def run() -> object:
                for item in reached:
                    self._run(item)
                    if self.failed:
                        break
                return self.failed

            limit = MORE + PATIENCE * sum(self.seconds[item.nodeid] for item in reached)
            by, seconds = _in_a_process(run, limit)
            self._revive()
            if by is None or seconds > limit:
                return "timeout", "", seconds
            if by:
                return "killed", by, seconds
            begun = time.monotonic()
            status = self._last_test()
            if status == "survived" and not reached:
                status = "unreached"
            return status, LAST if status == "killed" else "", seconds + time.monotonic() - begun

    def _last_test(self) -> str:
        """What becomes of the mutant that is in place."""
        command = self.part.last_test()
        if not command:
            return "survived"
        try:
            most = MORE * PATIENCE
            ended = subprocess.run(command, cwd=TESTS, timeout=most, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
        if ended.returncode and not re.search(r"^seed ", ended.stdout, re.MULTILINE):
            return "timeout"  # it ended by something else
        return "killed" if ended.returncode else "survived"

    def _compiles(self, script: str) -> bool:
        assert self.server is not None
        with self.server.client() as client:
            try:
                client.script_load(script)
            except redis.ResponseError:
                return False
            return True

    def _revive(self) -> None:
        """A script that doesn't end keeps the server."""
        assert self.server is not None
        try:
            with self.server.client(socket_timeout=2) as client:
                client.ping()
        except redis.RedisError:
            self.server.kill()
            self.server.restart()


def _left_out(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    others = {"procs", "rabbit_server", "postgres_server", "maria_server"} & {*item.fixturenames}  # type: ignore[attr-defined]
    return bool(others) or params.get("any_server") == "redis"


def _in_a_process(run: Callable[[], object], limit: float) -> tuple[Any, float]:
    """What it returns, None if it doesn't end in time or ends otherwise; and how long that took."""
    begun = time.monotonic()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(round(limit))
        try:
            with os.fdopen(tell, "w") as file:
                file.write(json.dumps(run()))
        except BaseException:  # noqa: BLE001  # the process that forked it goes on
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(tell)
    answered = select.select([told], [], [], limit + 30)[0]
    if not answered:
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(told) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None, time.monotonic() - begun


def _too_long(*_: object) -> None:
    raise TimeoutError("it takes too long")
