"""What a test may ask for: real servers, real processes, a ledger; and what is checked after each test."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

# servers, processes and ledger are imported by their bare names, here and by the apps that tests start
sys.path.insert(0, str(Path(__file__).parent))

import figures
import short
from deliveries import Worker, without_receivers, workers
from ledger import Ledger
from needs import BARE, IN_CI, bare_path, extra_of, find, left_out, missing
from pages import machine
from preloaded import Preloaded
from processes import Processes, environ, processes
from servers import (
    MariaServer,
    PostgresServer,
    RabbitServer,
    RedisServer,
    find_servers,
    keys_without_expiry,
    need_server,
)
from stage import T0, Stage
from system import System

from celery_once_beat import OnceTask
from celery_once_beat.settings import Settings
from celery_once_beat.store import Store
from celery_once_beat.worker import leases, put_back

ROOT = Path(__file__).parent.parent
_FIGURES = ROOT / "docs" / "reports" / "failures.jsonl"

# A failure prints the blob that reproduces it. In CI the examples are the same each time: a change that
# breaks something fails in its own run, not in a later one.
hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("celery-once-beat")
    group.addoption("--seed", type=int, help="of the chaos and the failovers; printed in the header")
    group.addoption("--minutes", type=float, default=3, help="of the chaos")
    group.addoption("--every", type=float, default=1.8, help="seconds between two faults of the chaos, on average")
    group.addoption("--broker", choices=("redis", "rabbitmq"), default="redis", help="of the chaos")
    group.addoption("--faults", type=int, default=150, help="of the bodies whose windows are recorded")
    group.addoption("--windows", type=int, default=2500, help="of the search for leaks")
    group.addoption("--figures", action="store_true", help="fill the figures of docs/reports/evidence.md")
    group.addoption("--short", action="store_true", help="what make test runs: see short.py")
    group.addoption("--rest", action="store_true", help="all but what the last make test here has passed: see short.py")
    group.addoption("--report", help="a folder for what chaos, failovers and the search for leaks measure")


def pytest_configure(config: pytest.Config) -> None:
    # A job in a shell's background ignores it, and so would all processes that are started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if BARE:
        folder = tempfile.mkdtemp(prefix="once-bare-")
        config.add_cleanup(lambda: shutil.rmtree(folder))
        os.environ["PATH"] = bare_path(Path(folder))
    if config.option.short:
        config.option.windows = min(config.option.windows, 1000)
        profile = hypothesis.settings.get_profile("ci" if IN_CI else "local")
        hypothesis.settings.register_profile("short", profile, max_examples=50)
        hypothesis.settings.load_profile("short")
    if config.option.seed is None:  # the processes of pytest-xdist get it from the first
        config.option.seed = 1 if IN_CI else secrets.randbelow(1_000_000)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.option.figures and not hasattr(session.config, "workerinput"):
        _FIGURES.parent.mkdir(parents=True, exist_ok=True)
        _FIGURES.write_text("")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.figures and not hasattr(session.config, "workerinput"):
        measured = figures.read(_FIGURES)
        _FIGURES.unlink()
        page = ROOT / "docs" / "reports" / "evidence.md"
        _FIGURES.with_suffix(".md").write_text(figures.report(measured, machine()))
        page.write_text(figures.fill(page.read_text(), measured))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.figures:
        wanted = figures.named((ROOT / "docs" / "reports" / "evidence.md").read_text())
        items[:] = [item for item in items if getattr(item, "originalname", item.name) in wanted]
    items.sort(key=_turn)
    if config.option.short:
        items[:] = short.chosen(items)
    if config.option.rest:
        items[:] = short.rest(items, config.cache.get(short.PASSED, []))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``make test`` doesn't import the files of which it runs nothing: that would take each process seconds."""
    return True if config.option.short and not short.may_run(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A module whose extra isn't installed is one test that is left out: it can't even be imported."""
    extra = extra_of(module_path)
    return None if extra is None or find(extra) else _LeftOutModule.from_parent(parent, path=module_path)


class _LeftOutModule(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _LeftOut.from_parent(self, name="all its tests")


class _LeftOut(pytest.Item):
    def runtest(self) -> None:
        missing(extra_of(self.path))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


def _turn(item: pytest.Item) -> tuple[bool, bytes]:
    """Mix modules that compute with modules that wait, in an order that stays the same; unit tests come last."""
    return "unit" in item.path.parts, hashlib.sha1(item.path.name.encode(), usedforsecurity=False).digest()


def pytest_report_header(config: pytest.Config) -> str:
    return f"the same once more: --seed {config.option.seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Note that a test failed, for fixtures at teardown, and what it lacked, for the summary."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    need = getattr(call.excinfo.value, "need", None) if call.excinfo else None
    if need:
        report.user_properties.append(("need", need))
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter):
    """End with how long each part of ``make test`` took, and a line of what was left out and what would install it."""
    yield
    config = terminalreporter.config
    if config.option.short:
        config.cache.set(short.PASSED, [report.nodeid for report in terminalreporter.getreports("passed")])
        for line in short.times([each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]):
            terminalreporter.write_line(line)
    skipped = terminalreporter.getreports("skipped")
    lacked = Counter(value for report in skipped for name, value in report.user_properties if name == "need")
    if lacked:
        terminalreporter.write_line(left_out(lacked))


# --------------------------------------------------------------------------------------------------- servers


@pytest.fixture(scope="session")
def _server_pool() -> Iterator[Callable[[str], RedisServer]]:
    """One server of each kind a session, started when first asked for."""
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(RedisServer.start(need_server(kind))))


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest, _server_pool: Callable[[str], RedisServer]) -> RedisServer:
    """The session's server: Valkey if there, else Redis; another kind by indirect parametrization."""
    kinds = list(find_servers())
    return _server_pool(getattr(request, "param", kinds[0] if kinds else "valkey"))


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis", marks=pytest.mark.long)])
def any_server(request: pytest.FixtureRequest, _server_pool: Callable[[str], RedisServer]) -> RedisServer:
    """Each kind of server in turn: the test runs once with each, with Redis by ``make long``."""
    return _server_pool(request.param)


def _flushed(server: RedisServer) -> str:
    with server.client() as client:
        client.flushall()  # not the scripts: to compile them takes longer than most tests
    return server.url()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of database 0 of the session's server, which is empty."""
    return _flushed(redis_server)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the session's server, which gives texts."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def any_url(any_server: RedisServer) -> str:
    """As ``redis_url``, once with each kind of server."""
    return _flushed(any_server)


@pytest.fixture
def close_later() -> Iterator[Callable[[Any], Any]]:
    """``close_later(store)`` gives the store, which is closed behind the test; the last one goes first."""
    with ExitStack() as opened:
        yield lambda thing: opened.enter_context(closing(thing))


@pytest.fixture
def store(redis_url: str, close_later: Callable[[Any], Any]) -> Store:
    """A store of the session's server, with the default settings."""
    return close_later(Store(Settings(redis_url=redis_url)))


@pytest.fixture
def new_stage(any_url: str, close_later: Callable[[Any], Any]) -> Callable[..., Any]:
    """Makes stages on one empty server, once on each kind; ``new_stage(url, kind=Stage, **settings)``."""
    return lambda url=any_url, kind=Stage, **settings: close_later(kind(url, **settings))


@pytest.fixture
def stage(new_stage: Callable[..., Any]) -> Stage:
    """A store with the default settings, and its entry loaded."""
    stage = new_stage()
    loaded = stage.load()
    assert (loaded.cursor, loaded.since, loaded.news, loaded.pause) == (T0, T0, "new", "")
    return stage


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start servers for this test alone, to be killed, paused or moved in time.

    ``start_redis(kind="valkey", args=…, appendonly=…, faketime=…)``. They are checked as the shared one is,
    if they answer at the test's end, and ended.
    """
    started: list[RedisServer] = []

    def start(kind: str | None = None, **options) -> RedisServer:
        started.append(RedisServer.start(need_server(kind), **options))
        return started[-1]

    yield start
    forever = []
    for server in started:
        try:
            if server.alive and not server.paused and server._answers():
                forever += keys_without_expiry(server)
        finally:
            server.__exit__()
    if forever:
        pytest.fail(f"keys without expiry: {forever}", pytrace=False)


def _server(kind):
    @pytest.fixture(scope="session")
    def server():
        with kind.start() as running:
            yield running

    return server


#: The session's servers of each kind.
rabbit_server, postgres_server, maria_server = map(_server, (RabbitServer, PostgresServer, MariaServer))


@pytest.fixture(scope="session")
def rabbit_url(rabbit_server: RabbitServer) -> str:
    """AMQP URL of the session's node. Queues outlive a test: take a queue name of your own."""
    return rabbit_server.url()


# ------------------------------------------------------------------------------------------------- processes

#: The tests whose processes are measured. Other tests run the same code, and measured they take half as long again.
_MEASURED = (
    "board", "contrib", "test_alerts_sent.py", "test_async_bodies.py", "test_bad_input.py", "test_cli.py",
    "test_defined.py", "test_deploys.py", "test_end_after_tracer.py", "test_ends.py", "test_ends_table.py",
    "test_keyed.py", "test_leases.py", "test_limits.py", "test_load_schedule.py", "test_odd_schedules.py",
    "test_orderly_ends.py", "test_outages.py", "test_pair.py", "test_ping.py", "test_prune.py",
    "test_pytest_plugin.py", "test_rabbitmq.py", "test_schedules_cli.py", "test_sending.py", "test_view.py",
    "test_waiting.py",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """For a module, so that it goes also for the processes that a module's own fixtures start."""
    with pytest.MonkeyPatch.context() as patch:
        if not {request.path.name, request.path.parent.name} & set(_MEASURED):
            patch.setenv("COVERAGE_PROCESS_CONFIG", "")
        yield


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Don't measure this test: others cover the same code, and measuring millions of calls doubles their time."""
    measuring = "coverage" in sys.modules and sys.modules["coverage"].Coverage.current()
    if measuring:
        measuring.stop()
    yield
    if measuring:
        measuring.start()


@pytest.fixture
def new_worker() -> Iterator[Callable[..., Worker]]:
    with without_receivers(), workers() as make:
        yield make


@pytest.fixture
def worker(new_worker: Callable[..., Worker], redis_url: str) -> Worker:
    return new_worker(redis_url)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread leaves ends alone. No slow machine is in the way."""
    monkeypatch.setattr(leases, "WITHIN", 3600.0)
    monkeypatch.setattr(OnceTask, "once_lease", 20.0)


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Callable[[], Preloaded]]:
    """``preloaded()``: what Celery's processes come of, in a test whose processes are measured and in others."""
    with ExitStack() as running:
        start = cache(lambda _measured: running.enter_context(closing(Preloaded(environ({})))))
        yield lambda: start(os.environ.get("COVERAGE_PROCESS_CONFIG", ""))


@pytest.fixture
def procs(
    request: pytest.FixtureRequest, preloaded: Callable[[], Preloaded | None], tmp_path: Path
) -> Iterator[Processes]:
    """Starts beats, workers and other processes; all end with the test; a failed test shows their logs."""
    processes.use(tmp_path, preloaded())
    yield processes
    if request.node.stash.get(_FAILED, False):
        print(processes.tails())
    processes.end_all()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger; give its ``path`` to the processes."""
    return Ledger(tmp_path / "ledger.jsonl")


# ------------------------------------------------------------------------------------------- after each test


@pytest.fixture(autouse=True)
def nothing_put_back() -> Iterator[None]:
    """An outage that one test has caused isn't logged as over in the next one, which the same process runs."""
    yield
    put_back._reasons.end(put_back._AWAY)


@pytest.fixture(autouse=True)
def no_key_without_expiry(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that used a shared server fails if it leaves a key of ours (``once:*``) that never expires."""
    names = [name for name in ("redis_server", "any_server") if name in request.fixturenames]
    servers = [request.getfixturevalue(name) for name in names]
    yield
    for server in servers:
        forever = keys_without_expiry(server)
        if forever:
            with server.client() as client:
                client.flushall()  # the next test isn't to blame
            pytest.fail(f"keys without expiry: {forever}", pytrace=False)


@pytest.fixture
def system(
    request: pytest.FixtureRequest, procs: Processes, ledger: Ledger, redis_url: str, tmp_path: Path
) -> Iterator[System]:
    """Beats and workers of the package; after the test the conservation law must hold for every entry."""
    system = System(procs, ledger, redis_url, tmp_path)
    yield system
    procs.end()
    if request.config.option.figures:
        figures.note(_FIGURES, request.function.__name__, ledger)
    try:
        if system.check_law:
            system.check_conservation()
    finally:
        system.store.close()
