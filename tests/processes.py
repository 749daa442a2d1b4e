"""Real processes of the system under test: beats and workers that can be killed, paused and read.

Each process gets a session, a directory and a log file of its own. Whatever is started here is ended by
:meth:`Processes.end_all`, through the handles that it holds, even if it was paused; nothing else is.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from preloaded import Forked, Preloaded
from servers import FakeClock

TESTS = Path(__file__).resolve().parent
T = TypeVar("T")


def wait_until(predicate: Callable[[], T], what: str, timeout: float, every: float = 0.05) -> T:
    """Ask *predicate* until its value is true, and return that value.

    After *timeout* seconds it fails with *what*, which says what should have come true, and the last value.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last value: {value!r}")
        time.sleep(every)


# libfaketime before 0.9.11 makes time.sleep() of Python 3.11 and later fail with EINVAL when the monotonic
# clock stays real. A process with a fake clock gets this as its sitecustomize: the same sleep by another
# system call.
_SLEEP = """\
import select, time

try:
    time.sleep(0.000001)
except OSError:
    def sleep(seconds):
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        select.select([], [], [], seconds)

    time.sleep = sleep
"""
# A host's name of its own, as in a container, which has it in HOSTNAME too.
_HOST = """\
import os, socket
socket.gethostname = lambda: os.environ["HOSTNAME"]
"""


class _Child(subprocess.Popen[bytes]):
    def look(self) -> int | None:
        """Its exit status; -n if signal n ended it; None while it is there. It isn't reaped."""
        if self.returncode is not None:
            return self.returncode
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


class Proc:
    """One process with its children, in a session of its own.

    The process isn't reaped before :meth:`end`: its id and its group's stay ours while we may signal them.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        directory: Path,
        env: Mapping[str, str] | None = None,
        faketime: float | str | None = None,
        cwd: Path | str | None = None,
        host: str = "",
        preloaded: Preloaded | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "log"
        self.clock: FakeClock | None = None
        variables = environ(env or {})
        if faketime is not None:
            self.clock = FakeClock(directory, faketime)
            variables.update(self.clock.env)
        if host:
            variables["HOSTNAME"] = host
        if host or self.clock:
            site = directory / "site"
            site.mkdir(exist_ok=True)
            (site / "sitecustomize.py").write_text((_SLEEP if self.clock else "") + (_HOST if host else ""))
            variables["PYTHONPATH"] = f"{site}{os.pathsep}{variables['PYTHONPATH']}"
        #: Under coverage.py it ends by itself where it can: killed, it takes what it measured with it.
        self.measured = bool(variables.get("COVERAGE_PROCESS_CONFIG"))
        self._popen = self._start(command, cwd or directory, variables, preloaded)
        self.pid = self._popen.pid
        self._ready: re.Pattern[str] | None = None
        self._ended = False

    def _start(
        self, command: Sequence[str], cwd: Path | str, variables: Mapping[str, str], preloaded: Preloaded | None
    ) -> _Child | Forked:
        with self.log_path.open("ab") as log:
            if preloaded and preloaded.can_become(command, variables):
                return preloaded.start(command, log=self.log_path, cwd=cwd, env=variables)
            return _Child(
                list(command), cwd=cwd, env=variables, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.name} pid {self.pid}>"

    # ----------------------------------------------------------------------------------------------- looking

    @property
    def alive(self) -> bool:
        """Whether the main process is there, paused or not."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the main process; -n if signal n ended it; None while it is there."""
        return self._popen.look()

    @property
    def log(self) -> str:
        """All that the process and its children have printed."""
        return self.log_path.read_text(errors="replace")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    def members(self) -> dict[int, str]:
        """Living processes of the session, this one included: process id → state letter of ``/proc``."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state not in "ZX":
                    found[int(stat.parent.name)] = state
        return found

    def children(self) -> list[int]:
        """Process ids of all living processes of the session but the main one, as a pool's."""
        return sorted(set(self.members()) - {self.pid})

    # ----------------------------------------------------------------------------------------------- waiting

    def wait(self, timeout: float = 60) -> int:
        """Wait until the main process has ended; its exit status, as :attr:`exit_code`."""
        self._wait_until(lambda: not self.alive, "to end", timeout)
        code = self.exit_code
        assert code is not None
        return code

    def wait_log(self, pattern: str, timeout: float = 60, since: int = 0) -> re.Match[str]:
        """Wait until the log, from character *since* on, has a match of *pattern* (lines: ``^`` and ``$``).

        Fails as soon as the process has ended without one.
        """
        expression = re.compile(pattern, re.MULTILINE)

        def look() -> re.Match[str] | None:
            was_alive = self.alive  # before reading: what it printed at its end counts
            match = expression.search(self.log, since)
            if match is None and not was_alive:
                raise AssertionError(f"{self!r} ended with {self.exit_code}, hasn't logged {pattern!r}:\n{self.tail()}")
            return match

        return self._wait_until(look, f"to log {pattern!r}", timeout)

    def wait_ready(self, timeout: float = 60) -> Proc:
        """Wait until a worker takes tasks, or a beat has started; returns the process itself."""
        assert self._ready is not None, f"{self!r} has no sign of being ready"
        self.wait_log(self._ready.pattern, timeout)
        return self

    def _wait_until(self, predicate: Callable[[], T], what: str, timeout: float) -> T:
        try:
            return wait_until(predicate, f"{self!r} {what}", timeout)
        except AssertionError as exc:
            if str(exc).startswith("not within"):
                raise AssertionError(f"{exc}; its log ends with:\n{self.tail()}") from None
            raise

    # ------------------------------------------------------------------------------------------------ acting

    def signal(self, number: int, main_only: bool = False) -> None:
        """Send a signal to the whole group, or to the main process alone; to an ended one nothing is sent."""
        if self._ended:
            return
        with contextlib.suppress(ProcessLookupError):
            if main_only:
                os.kill(self.pid, number)
            else:
                os.killpg(self.pid, number)

    def kill(self, main_only: bool = False) -> None:
        """SIGKILL to the whole group, as with a lost machine; *main_only* leaves a pool's children alone.

        Returns once they are gone.
        """
        self.signal(signal.SIGKILL, main_only)
        self._wait_until(lambda: not self.alive, "to die", 60)
        if not main_only:
            self._wait_until(lambda: not self.children(), "to lose its children", 60)
        if self.clock:
            FakeClock.forget(self.pid)

    def terminate(self, group: bool = False) -> None:
        """SIGTERM to the main process, or as some supervisors to the *group*. Doesn't wait."""
        self.signal(signal.SIGTERM, main_only=not group)

    def pause(self) -> None:
        """SIGSTOP to the whole group; returns once every process of it stands still."""
        self.signal(signal.SIGSTOP)
        self.wait_still()

    def wait_still(self) -> None:
        """Wait until every process of the group stands still, whoever stopped it."""
        self._wait_until(lambda: all(state == "T" for state in self.members().values()), "to stand still", 60)

    def resume(self) -> None:
        """SIGCONT to the whole group."""
        self.signal(signal.SIGCONT)

    def set_clock_offset(self, seconds: float) -> None:
        """Move the wall clock of a process started with *faketime* to *seconds* from the real one."""
        assert self.clock is not None, f"start {self!r} with faketime=0 to move its clock"
        self.clock.set(seconds)

    def stop(self, timeout: float = 30) -> int:
        """Warm shutdown, by force after *timeout* seconds; the exit status."""
        self.resume()
        self.terminate()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.alive, "", timeout)
        code = self.exit_code
        self.end()
        return self._popen.returncode if code is None else code

    def end(self) -> None:
        """Whatever its state: nothing of the process or its group is left. Again: does nothing."""
        if self._ended:
            return
        self.kill()
        self._ended = True
        self._popen.wait()


def environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Our own environment (coverage's with it), the tests importable, and *extra*."""
    environ = dict(os.environ)
    paths = [str(TESTS), *filter(None, [environ.get("PYTHONPATH")])]
    environ.update(
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONUNBUFFERED="1",  # a killed process loses no line of its log
        C_FORCE_ROOT="1",  # Celery warns less when the tests run as root
    )
    environ.update({name: str(value) for name, value in extra.items()})
    return environ


class Processes:
    """Starts processes and keeps hold of all of them until :meth:`end_all`."""

    def __init__(self, directory: Path | None = None, preloaded: Preloaded | None = None) -> None:
        self._live: list[Proc] = []
        self._directory = directory
        self._own_directory: Path | None = None
        self._preloaded = preloaded

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_all()

    def __iter__(self):
        return iter(self._live)

    def use(self, directory: Path, preloaded: Preloaded | None) -> None:
        """From now on processes get their directories below *directory*, and Celery's come of *preloaded*."""
        self._directory = directory
        self._preloaded = preloaded

    def start(self, command: Sequence[str], *, name: str, ready: str | None = None, **options: Any) -> Proc:
        """Any command; *ready* is the pattern of its log for :meth:`Proc.wait_ready`.

        *options*, as :class:`Proc` has them: it works in *cwd*, or in the directory of its log, and takes *host* for
        its host's name.
        """
        proc = Proc(command, name=name, directory=self._new_directory(name), preloaded=self._preloaded, **options)
        self._live.append(proc)
        if ready is not None:
            proc._ready = re.compile(ready)
        return proc

    def start_beat(
        self,
        app_module: str,
        *,
        name: str = "beat",
        scheduler: str = "once",
        extra_args: Sequence[str] = (),
        loglevel: str = "INFO",
        run_by: Sequence[str] = (),
        **options: Any,
    ) -> Proc:
        """``celery beat`` for the app of *app_module*, in a directory of its own. Doesn't wait for it.

        *options* are :class:`Proc`'s. *faketime*: its wall clock is so many seconds (``7``, ``"+7s"``, ``"-5s"``) from
        the real one. *run_by*: a command that is given this one.
        """
        command = [
            *run_by, sys.executable, "-m", "celery", "-A", app_module, "beat", "-S", scheduler, "-l", loglevel,
            "--pidfile=", *extra_args,
        ]  # fmt: skip
        return self.start(command, name=name, ready=r"beat: Starting\.\.\.", **options)

    def start_worker(
        self,
        app_module: str,
        *,
        name: str = "worker",
        pool: str = "prefork",
        concurrency: int = 2,
        extra_args: Sequence[str] = (),
        beat: bool = False,
        scheduler: str = "once",
        loglevel: str = "INFO",
        run_by: Sequence[str] = (),
        **options: Any,
    ) -> Proc:
        """``celery worker`` for the app of *app_module*; with *beat* it embeds one (``-B``). Doesn't wait."""
        command = [
            *run_by, sys.executable, "-m", "celery", "-A", app_module, "worker", "-l", loglevel, "-n", f"{name}@%h",
            "-P", pool, "-c", str(concurrency), "--without-gossip", "--without-mingle", "--without-heartbeat",
        ]  # fmt: skip
        if beat:
            command += ["-B", "--scheduler", scheduler]
        command += extra_args
        return self.start(command, name=name, ready=r" ready\.$", **options)

    def end(self) -> None:
        """End every process that was started here; their logs stay. All are tried before an error is raised."""
        errors = []
        measured = [proc for proc in self._live if proc.measured]
        for proc in measured:
            proc.resume()
            proc.terminate()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(proc.alive for proc in measured), "", 10)
        for proc in self._live:
            proc.signal(signal.SIGKILL)  # all at once: none should notice that another is gone
        for proc in self._live:
            try:
                proc.end()
            except AssertionError as exc:
                errors.append(str(exc))
        if errors:
            raise AssertionError("\n".join(errors))

    def end_all(self) -> None:
        """As :meth:`end`, and forget them."""
        try:
            self.end()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._live.clear()
        self._directory = self._preloaded = None
        if self._own_directory:
            shutil.rmtree(self._own_directory, ignore_errors=True)
            self._own_directory = None

    def tails(self, lines: int = 40) -> str:
        """The end of every log, for the report of a failed test."""
        return "\n".join(f"----- log of {proc!r}, exit {proc.exit_code}\n{proc.tail(lines)}" for proc in self._live)

    def _new_directory(self, name: str) -> Path:
        if self._directory is None:
            self._directory = self._own_directory = Path(tempfile.mkdtemp(prefix="once-procs-"))
        number = len(self._live)
        return self._directory / f"{number:02d}-{re.sub('[^A-Za-z0-9_.-]', '_', name)}"


#: The registry behind the ``procs`` fixture.
processes = Processes()
atexit.register(processes.end_all)
