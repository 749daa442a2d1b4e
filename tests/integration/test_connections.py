"""Ways to connect to Redis, each with a real server, a beat and a worker: TLS, password, ACL user, Unix socket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import trustme
from needs import need
from processes import Proc, wait_until
from redis.cluster import key_slot
from servers import RedisServer, free_port
from stage import DELAY, Stage, nth
from system import System

from celery_once_beat import Schedules
from celery_once_beat.errors import OnceError, StoreUnavailableError, UncertainWriteError
from celery_once_beat.features.admission.store import acquire_slot, ask_free_slots, make_due, release_slot, slot_renewal
from celery_once_beat.features.alerts.store import alerted, drop_alert
from celery_once_beat.features.orders.store import Order, write_orders
from celery_once_beat.lookup import Lookup
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import Window, WindowKey, encode_headers

SECRET = "s3cret-word"
DOCUMENT = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()


def rights(what: str = "") -> list[str]:
    """What the document gives its user in redis.conf, or for one thing more."""
    by_user = r"^user once on \S+ (~\S+) resetchannels -@all (.*)$"
    found = re.search(rf"<!-- {what} --> `([^`]*)`" if what else by_user, DOCUMENT, re.MULTILINE)
    assert found, what
    return " ".join(found.groups()).split()


def set_user(server: RedisServer, *rules: str) -> None:
    """A user ``once`` with these rules and no others."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "once", "reset", "on", f">{SECRET}", *rules)


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Path, Path, tuple[str, ...]]:
    """The right authority's file, another one's, and a server's options for a certificate of the right one."""
    need("redis-server", in_wheels=False)  # those of the wheels are built without TLS
    right, wrong = trustme.CA(), trustme.CA()
    certificate = right.issue_cert("localhost", "127.0.0.1")  # by which a cluster names its nodes
    paths = [tmp_path / name for name in ("right.pem", "wrong.pem", "key.pem", "chain.pem")]
    right.cert_pem.write_to_path(str(paths[0]))
    wrong.cert_pem.write_to_path(str(paths[1]))
    certificate.private_key_pem.write_to_path(str(paths[2]))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(paths[3]), append=True)
    options = (
        *("--tls-port", str(free_port()), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(paths[0])),
        *("--tls-key-file", str(paths[2]), "--tls-cert-file", str(paths[3])),
    )
    return paths[0], paths[1], options


def tls_url(options: tuple[str, ...], authority: Path) -> str:
    return f"rediss://localhost:{options[1]}/0?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={authority}"


@contextmanager
def connected(system: System, url: str, **options: Any) -> Iterator[None]:
    """Coordinate through ``url``; the broker stays the session's plain server."""
    system.store.close()
    # A server that gets no time for two seconds isn't what these tests are about.
    patient = {"socket_timeout": 20.0, "socket_connect_timeout": 20.0, **options}
    system.store_url, system.settings = url, {"once_beat_redis_options": patient}
    system.store = Store(Settings(redis_url=url, redis_options=options))
    yield


def runs_windows(system: System) -> None:
    """A beat and a worker run each window once, and a probe finds the beat."""
    worker = system.worker()
    worker.wait_ready()
    beat = system.beat()
    system.wait_done(2)
    probe = ping(system)
    assert probe.exit_code == 0, probe.log
    system.settle([beat])
    system.check_each_once()
    system.check_conservation()
    system.check_law = False  # it has been; the server's password is taken back before the fixture would
    for proc in system.procs:
        assert SECRET not in proc.log
        assert "Traceback" not in proc.log
    assert SECRET not in repr(system.store.settings) + repr(system.store.trip._nodes.client)


def ping(system: System) -> Proc:
    proc = system.celery("once", "ping")
    proc.wait()
    return proc


def is_said_once(system: System, reason: str, *, to_a_probe: bool = True) -> None:
    """A beat and a worker that Redis refuses say so, once each, in a line without the password, and stay."""
    system.check_law = False
    if to_a_probe:
        probe = ping(system)
        assert probe.exit_code == os.EX_UNAVAILABLE
        assert re.search(reason, probe.log), probe.log
        assert probe.log.count("\n") == 1
    worker = system.worker()
    worker.wait_ready()
    beat = system.beat()
    beat.wait_log(f"nothing is claimed until Redis can be used again: .*{reason}")
    window = Window("tick", datetime(2026, 1, 1, tzinfo=timezone.utc), None, tracked=True)
    headers = encode_headers(window)
    system.send("apps.once_app.work", headers)
    worker.wait_log(f"messages are put back for .*{reason}")
    system.send("apps.once_app.work", headers)
    # It has tried again for some times: a new beat's line stands for the moment.
    wait_until(lambda: system.waiting() == 0, "the worker has taken what was sent", 60)
    other = system.beat("other")
    other.wait_log("nothing is claimed until Redis can be used again")
    assert beat.alive
    assert worker.alive
    for proc in system.procs:
        assert SECRET not in proc.log
        assert "Traceback" not in proc.log
    assert len(re.findall(reason, beat.log)) == 1
    assert len(re.findall(reason, worker.log)) == 1


# --------------------------------------------------------------------------------------------------- TLS


def test_tls(start_redis: Callable[..., RedisServer], system: System, authorities: Any) -> None:
    """The server's certificate is verified by the authority that the URL names, its host name too."""
    right, wrong, options = authorities
    start_redis("redis", args=options)
    refused = pytest.raises(StoreUnavailableError, match="certificate verify failed")
    with closing(Store(Settings(redis_url=tls_url(options, wrong)))) as store, refused:
        store.snapshot().beats
    with connected(system, tls_url(options, right)):
        runs_windows(system)


def make_cluster(server: RedisServer) -> None:
    """A cluster of this one node."""
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: "state:ok" in str(client.execute_command("CLUSTER", "INFO")), "the cluster is up", 30)


@pytest.mark.parametrize("by", ["url", "options"])
@pytest.mark.long
def test_a_cluster_with_tls(start_redis: Callable[..., RedisServer], system: System, authorities: Any, by: str) -> None:
    """The certificate of each node is verified by the authority that URL or options name."""
    right, _, options = authorities
    make_cluster(start_redis("redis", args=(*options, "--tls-cluster", "yes", "--cluster-enabled", "yes")))
    url, given = tls_url(options, right).replace("rediss:", "rediss+cluster:"), {}
    if by == "options":
        url, given = f"redis+cluster://localhost:{options[1]}", {"ssl": True, "ssl_ca_certs": str(right)}
    with connected(system, url, **given):
        runs_windows(system)


@pytest.mark.long
def test_a_broker_whose_prefix_is_a_hash_tag(start_redis: Callable[..., RedisServer], system: System) -> None:
    """All of Celery is in one slot, so a node of a cluster can be its broker: then it coordinates, too."""
    servers = [start_redis(args=("--cluster-enabled", "yes")) for _ in range(2)]
    slot = key_slot(b"queue")
    with servers[0].client() as client, servers[1].client() as other:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, slot)
        other.execute_command("CLUSTER", "ADDSLOTSRANGE", slot + 1, 16383)
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[1].port)
        for each in (client, other):
            wait_until(lambda: "state:ok" in str(each.execute_command("CLUSTER", "INFO")), "it is up", 30)  # noqa: B023
        system.broker_url = servers[0].url()
        transport = {"global_keyprefix": "{queue}:"}
        with connected(system, system.broker_url):
            system.settings = {"once_beat_redis_url": None, "broker_transport_options": transport}
            system.store.close()
            system.store = Store(Settings(redis_url=system.broker_url, key_prefix="{queue}:once:"))
            runs_windows(system)
        assert [*client.scan_iter("{queue}:once:*")]


@pytest.mark.long
def test_a_proxy_that_knows_no_hello(start_redis: Callable[..., RedisServer], system: System) -> None:
    """RESP2 is spoken, which begins with no such command."""
    server = start_redis(args=("--rename-command", "HELLO", ""))
    with connected(system, server.url()):
        runs_windows(system)
    server.stop()  # what the harness asks at a test's end begins with it
    system.check_law = False


# --------------------------------------------------------------------------- password, user, socket


PROVIDER = "apps.credentials.Provider"
#: What the user may, or None for the default one; what is made of the server's URL and of its socket's path; options.
WAYS: dict[str, tuple[Sequence[str] | None, Callable[[str, Path], str], dict[str, str]]] = {
    "password, url": (None, lambda url, _: url.replace("://", f"://:{SECRET}@"), {}),
    "password, options": (None, lambda url, _: url, {"password": SECRET}),
    "socket": (None, lambda _, path: f"redis+socket://:{SECRET}@{path}?virtual_host=0", {}),
    "provider, url": (["~*", "&*", "+@all"], lambda url, _: f"{url}?credential_provider={PROVIDER}", {}),
    "provider, options": (["~*", "&*", "+@all"], lambda url, _: url, {"credential_provider": PROVIDER}),
    "no more rights than it needs": (rights(), lambda url, _: url.replace("://", f"://once:{SECRET}@"), {}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_who_it_is(start_redis: Callable[..., RedisServer], system: System, way: str) -> None:
    """A password, a user by a class of the user's own or with the document's rights; a socket. It is shown nowhere."""
    may, address, options = WAYS[way]
    path = Path("/tmp") / f"once-{os.getpid()}.sock"  # a socket's path may be 107 bytes long
    server = start_redis(args=("--unixsocket", str(path)))
    if may is not None:
        set_user(server, *may)
    with with_password(server), connected(system, address(server.url(), path), **options):
        runs_windows(system)


@contextmanager
def with_password(server: RedisServer, password: str = SECRET) -> Iterator[None]:
    """Taken back at the end, so that the fixture can look for keys without expiry."""
    with server.client() as client:
        client.config_set("requirepass", password)
    yield
    with server.client(password=password) as client:
        client.config_set("requirepass", "")


@pytest.mark.parametrize("given", [f"://:{SECRET}@", f"://nobody:{SECRET}@"])
@pytest.mark.long
def test_a_wrong_password(start_redis: Callable[..., RedisServer], system: System, given: str) -> None:
    """One line that says so, without what was given."""
    server = start_redis()
    with with_password(server, "another"), connected(system, server.url().replace("://", given)):
        is_said_once(system, "invalid username-password pair")


@pytest.mark.parametrize("without", ["evalsha", "hset"])
def test_a_user_that_may_not(start_redis: Callable[..., RedisServer], system: System, without: str) -> None:
    """A right that is missing is one line that names the command, be it sent or within a script."""
    server = start_redis()
    set_user(server, *rights(), f"-{without}")
    with connected(system, server.url().replace("://", f"://once:{SECRET}@")):
        # a probe only looks
        is_said_once(system, f"no permissions to run the '{without}' command", to_a_probe=without == "evalsha")


# ------------------------------------------------------------------------------- the list, command by command


def exercise(user: Stage, admin: Stage) -> None:
    """Every verb, in the states in which it does different things; ``admin`` lets time pass."""
    user.load(known=None)
    admin.raw.delete(*admin.all_keys())
    user.load()
    user.store.overdue("beat-1", datetime.now(timezone.utc), 10)
    user.claim()
    user.confirm()
    user.fences["A"] = user.begin("A").fence
    user.renew("A")
    user.begin("B")
    user.hand_over("A", 1)
    user.fences["B"] = user.begin("B", retry=1).fence
    user.finish("B", "failed", DELAY)
    admin.overdue()
    user.take("beat-1")
    user.fences["C"] = user.begin("C").fence
    user.finish("C")
    user.store.account("nightly")
    user.backfill()
    user.confirm()
    user.discard()
    missed = [nth(number) for number in range(2, 5)]
    user.claim(start=nth(5), since=nth(1), missed=missed, missed_count=3)
    user.start = nth(5)
    admin.start = nth(5)
    admin.overdue()
    user.postpone([])
    user.load(deadline=900.0, on_failure="proj.tell", pause_after_failures=1)
    user.claim(start=nth(7), since=nth(5), missed=[nth(6)], missed_count=1)
    user.start = nth(7)
    user.execute("E", "failed")
    for what in ("left", "sent"):
        (alerts,) = user.take_alerts()
        kinds = sorted(alert.kind for alert in alerts.found)
        assert kinds == ["ended", "ended", "late", "paused"], "what a window's end can't xadd is lost"
        for alert in alerts.found:
            alerted(user.store, alert, what)
    shard = user.shard_number
    admin.raw.xadd(f"once:{{{shard}}}:alerts", {"garbage": "garbage"})
    ((event, _),) = user.take_alerts()[0].foreign
    drop_alert(user.store, shard, event)
    user.load(mark="another", beat="beat-2")
    user.store.set_paused("nightly", paused=True)
    user.store.set_paused("nightly", paused=False)
    for _ in range(201):  # so that it is trimmed
        write_orders(user.store, {user.store.new_id(): Order("abandon", "nightly", "anna")})
    user.abandon(running=True)
    user.store.leave("beat-1")
    user.store.snapshot().beats
    admin.raw.set(user.entry_key, "x", ex=60)
    with pytest.raises(OnceError, match="holds a string, expected a hash"):
        user.begin("D")


def allowed(server: RedisServer, *rules: str, **settings: Any) -> Exception | None:
    """Exercise a user with these rules; returns the first thing that it may not."""
    with server.client() as client:
        client.flushall()
        client.script_flush()
    set_user(server, *rules)
    admin = Stage(server.url())
    settings["history_size"] = 1  # so that it is trimmed
    user = Stage(server.url(), redis_options={"username": "once", "password": SECRET}, **settings)
    try:
        check = _raising(user)
        exercise(check, admin)
        lookup = Lookup(user.store)
        lookup.beats()  # as ping reads them, a probe of each beat
        lookup.entry("nightly", 1)
    except (StoreUnavailableError, AssertionError) as exc:
        return exc
    finally:
        admin.raw.flushall()
        admin.close()
        user.close()
    return None


def _raising(stage: Stage) -> Any:
    """The same stage, whose verbs raise the errors that they else return in a list."""

    class Raising:
        def __getattr__(self, name: str) -> Any:
            value = getattr(stage, name)
            if not callable(value):
                return value

            def call(*args: Any, **kwargs: Any) -> Any:
                answer = value(*args, **kwargs)
                for each in answer if isinstance(answer, list) else [answer]:
                    if isinstance(each, OnceError):
                        raise each
                return answer

            return call

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(stage, name, value)

    return Raising()


def refused(server: RedisServer, *rules: str, act: Callable[[Stage], None]) -> set[str]:
    """What a user with these rules is refused while it acts."""
    with server.client() as client:
        client.flushall()
        client.execute_command("ACL", "LOG", "RESET")
        set_user(server, *rules)
        stage = Stage(server.url(), redis_options={"username": "once", "password": SECRET})
        act(stage)
        stage.close()
        found = {entry["object"] for entry in client.acl_log()}
        return found - {"client|setinfo", "client"}  # as redis-py introduces itself


def test_limits_need_some_more(any_server: RedisServer) -> None:
    """With what the document names for them no verb of a limit is refused anything; each of it is needed."""

    def act(stage: Stage) -> None:
        one, other = (WindowKey("nightly", nth(number)) for number in (1, 2))
        with suppress(StoreUnavailableError):
            acquire_slot(stage.store, "reports", 1, one, "A", 30.0)
            acquire_slot(stage.store, "reports", 1, other, "B", 30.0)
            stage.store.trip.one(slot_renewal(stage.store, "reports", one, "A", 30.0))
            release_slot(stage.store, "reports", one, "A", forget=True)
        stage.store.overdue("b", datetime.now(timezone.utc), 10, requests=ask_free_slots(stage.store, {"reports": 1}))
        make_due(stage.store, "reports", [other])

    more = rights("acl-limits")
    assert refused(any_server, *rights(), *more, act=act) == set()
    for right in more:
        assert right[1:] in refused(any_server, *rights(), *(other for other in more if other != right), act=act)


def test_each_right_is_needed(any_server: RedisServer) -> None:
    """With the document's list every verb works; with any one of it taken away, some verb doesn't."""
    given = rights()
    assert allowed(any_server, *given) is None
    for right in set(given) - {"+hlen", "+hscan", "+info"}:  # what only commands need: test_doc_redis
        error = allowed(any_server, *(other for other in given if other != right))
        assert error is not None, f"{right} isn't needed"
        assert SECRET not in str(error)
        # Redis 7.0 doesn't say which command of a script it was.
        assert right[1:] in str(error) or re.search("can't run this command|NoPermissionError", str(error)), error


def test_schedules_that_are_set_need_some_more(any_server: RedisServer, any_url: str) -> None:
    """With what the document names, all of it works; without, what is missing is named."""
    url, options = any_url.partition("//")[2], {"username": "once", "password": SECRET}
    for rules, works in ((rights(), False), ([*rights(), *rights("acl-schedules")], True)):
        set_user(any_server, *rules)
        with closing(Schedules(url=f"redis://{url.rpartition('@')[2]}", redis_options=options)) as schedules:
            if not works:
                with pytest.raises(StoreUnavailableError, match=r"persist|can't run this command|NoPermissionError"):
                    schedules.set("report", task="proj.report", schedule=60)
                continue
            schedules.set("report", task="proj.report", schedule=60)
            schedules.pause("report")
            schedules.resume("report")
            assert len(schedules.changes("report")) == 3
            assert [each.name for each in schedules.list()] == ["report"]
            assert schedules.delete("report")
            schedules.set("report", task="proj.report", schedule=30)


def test_wait_is_a_right_of_its_own(any_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no write is certain, and the error names the command; with it, it is for the replicas to say."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    without = allowed(any_server, *rights(), wait_replicas=1)
    assert isinstance(without, UncertainWriteError)
    assert "'wait'" in str(without)
    certain = allowed(any_server, *rights(), *rights("acl-wait"), wait_replicas=1)
    assert isinstance(certain, UncertainWriteError)
    assert "0 of 1 replicas" in str(certain)


def test_another_database_needs_select(any_server: RedisServer) -> None:
    """Database 0 is where a connection begins; any other is selected."""
    for rules, works in ((rights(), False), ([*rights(), *rights("acl-select")], True)):
        set_user(any_server, *rules)
        store = Store(Settings(redis_url=any_server.url(1), redis_options={"username": "once", "password": SECRET}))
        if works:
            assert store.snapshot().beats == ()
        else:
            with pytest.raises(StoreUnavailableError, match="select"):
                store.snapshot().beats
        store.close()
