"""Ways to connect to Redis, each with a real server, a beat and a worker: TLS, password, ACL user, Unix socket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import trustme
from needs import need
from processes import wait_until
from redis.cluster import key_slot
from servers import RedisServer, free_port
from stage import ENTRY, MINUTE, VERBS, Stage, answer_or_error, nth
from system import System

from celery_once_beat import Schedules
from celery_once_beat.errors import OnceError, StoreUnavailableError
from celery_once_beat.features.admission.store import acquire_slot, ask_free_slots, make_due, release_slot, slot_renewal
from celery_once_beat.features.alerts.store import alerted, drop_alert
from celery_once_beat.features.orders.store import Order, write_orders
from celery_once_beat.lookup import Lookup
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import Window, WindowKey, encode_headers

SECRET = "s3cret-word"
#: What is done by a user with few rights.
Act = Callable[[Stage], object]
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


def connect(system: System, url: str, **options: Any) -> None:
    """Coordinate through ``url``; the broker stays the session's plain server."""
    system.store.close()
    # A server that gets no time for two seconds isn't what these tests are about.
    patient = {"socket_timeout": 20.0, "socket_connect_timeout": 20.0, **options}
    system.store_url, system.settings = url, {"once_beat_redis_options": patient}
    system.store = Store(Settings(redis_url=url, redis_options=options))


def runs_windows(system: System) -> None:
    """A beat and a worker run each window once, and a probe finds the beat."""
    worker = system.worker()
    worker.wait_ready()
    beat = system.beat()
    system.wait_done(2)
    system.once("ping")
    system.settle([beat])
    system.check_each_once()
    system.check_conservation()
    system.check_law = False  # it has been; the server's password is taken back before the fixture would
    for proc in system.procs:
        assert SECRET not in proc.log
        assert "Traceback" not in proc.log
    assert SECRET not in repr(system.store.settings) + repr(system.store.trip._nodes.client)


# --------------------------------------------------------------------------------------------------- TLS


LONG = pytest.mark.long


@pytest.mark.parametrize("by", ["url", pytest.param("cluster's url", marks=LONG), pytest.param("options", marks=LONG)])
def test_tls(start_redis: Callable[..., RedisServer], system: System, authorities: Any, by: str) -> None:
    """The certificate of each node is verified by the authority that URL or options name, its host name too."""
    right, wrong, options = authorities
    cluster = () if by == "url" else ("--tls-cluster", "yes", "--cluster-enabled", "yes")
    server = start_redis("redis", args=(*options, *cluster))
    refused = pytest.raises(StoreUnavailableError, match="certificate verify failed")
    with closing(Store(Settings(redis_url=tls_url(options, wrong)))) as store, refused:
        store.snapshot()
    url, given = tls_url(options, right), {}
    if cluster:
        url = url.replace("rediss:", "rediss+cluster:")
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: "state:ok" in str(client.execute_command("CLUSTER", "INFO")), "the cluster is up", 30)
    if by == "options":
        url, given = f"redis+cluster://localhost:{options[1]}", {"ssl": True, "ssl_ca_certs": str(right)}
    connect(system, url, **given)
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
        connect(system, system.broker_url)
        system.settings = {"once_beat_redis_url": None, "broker_transport_options": transport}
        system.store.close()
        system.store = Store(Settings(redis_url=system.broker_url, key_prefix="{queue}:once:"))
        runs_windows(system)
        assert [*client.scan_iter("{queue}:once:*")]


# --------------------------------------------------------------------------- password, user, socket


PROVIDER = "apps.credentials.Provider"
#: What the user may, or None for the default one; what is made of the server's URL and of its socket's path; options.
WAYS: dict[str, tuple[Sequence[str] | None, Callable[[str, Path], str], dict[str, str]]] = {
    "password, url": (None, lambda url, _: url.replace("://", f"://:{SECRET}@"), {}),
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
    with server.client() as client:
        client.config_set("requirepass", SECRET)
    connect(system, address(server.url(), path), **options)
    runs_windows(system)
    with server.client(password=SECRET) as client:
        client.config_set("requirepass", "")  # the fixture looks for keys without expiry


@pytest.mark.parametrize("without", ["evalsha", "hset"])
def test_a_user_that_may_not(start_redis: Callable[..., RedisServer], system: System, without: str) -> None:
    """Beat and worker say it once, in a line that names the command, be it sent or within a script; and they stay."""
    server, reason = start_redis(), f"no permissions to run the '{without}' command"
    set_user(server, *rights(), f"-{without}")
    system.check_law = False
    connect(system, server.url().replace("://", f"://once:{SECRET}@"))
    worker = system.worker()
    worker.wait_ready()
    beat = system.beat()
    beat.wait_log(f"nothing is claimed until Redis can be used again: .*{reason}")
    headers = encode_headers(Window("tick", datetime(2026, 1, 1, tzinfo=timezone.utc), None, tracked=True))
    system.send("apps.once_app.work", headers)
    worker.wait_log(f"messages are put back for .*{reason}")
    system.send("apps.once_app.work", headers)
    # It has tried again for some times: a new beat's line stands for the moment.
    wait_until(lambda: system.waiting() == 0, "the worker has taken what was sent", 60)
    system.beat("other").wait_log("nothing is claimed until Redis can be used again")
    for proc in (beat, worker):
        assert proc.alive
        assert SECRET not in proc.log
        assert "Traceback" not in proc.log
        assert len(re.findall(reason, proc.log)) == 1


# ------------------------------------------------------------------------------- the list, command by command


def exercise(user: Stage) -> None:
    """Every verb, in states in which they do different things; time passes by the stage's own, other client."""
    store = user.store
    user.load(known=None)
    for state in ("unseen", "published", "again", "waits turn", "died"):
        user.raw.flushall()
        user.start = nth(1)
        user.load(deadline=900.0, on_failure="proj.tell", pause_after_failures=1)
        user.reach(state)
        for verb in VERBS.values():
            answer_or_error(lambda: verb(user))  # noqa: B023
    store.set_paused(ENTRY, paused=False)
    cursor = store.account(ENTRY).cursor
    user.claim(start=cursor + 3 * MINUTE, since=cursor, missed=[cursor + MINUTE, cursor + 2 * MINUTE], missed_count=2)
    user.postpone([])
    for what in ("left", "sent"):
        (alerts,) = user.take_alerts()
        assert {alert.kind for alert in alerts.found} >= {"ended", "late"}, "what a window's end can't xadd is lost"
        for alert in alerts.found:
            alerted(store, alert, what)
    user.raw.xadd(f"once:{{{user.shard_number}}}:alerts", {"garbage": "garbage"})
    ((event, _),) = user.take_alerts()[0].foreign
    drop_alert(store, user.shard_number, event)
    user.load(mark="another", beat="beat-2")
    for _ in range(201):  # so that it is trimmed
        write_orders(store, {store.new_id(): Order("abandon", ENTRY, "anna")})
    store.overdue("beat-1", datetime.now(timezone.utc), 10)
    store.leave("beat-1")
    lookup = Lookup(store)
    lookup.beats()  # as ping reads them, a probe of each beat
    lookup.entry(ENTRY, 1)
    user.raw.set(user.entry_key, "x", ex=60)
    with pytest.raises(OnceError, match="holds a string, expected a hash"):
        user.begin("D")


def refused(server: RedisServer, rules: Sequence[str], act: Act, **settings: Any) -> set[str]:
    """What a user with these rules is refused while it acts."""
    with server.client() as client:
        client.flushall()
        client.script_flush()
        client.execute_command("ACL", "LOG", "RESET")
        set_user(server, *rules)
        options = {"username": "once", "password": SECRET}
        user = Stage(server.url(), redis_options=options, history_size=1, **settings)
        error = None
        try:
            act(user)
        except Exception as exc:  # noqa: BLE001  # whatever comes of what it may not do
            error = exc
        user.close()
        client.flushall()
        found = {entry["object"] for entry in client.acl_log()} - {"client|setinfo", "client"}  # as redis-py begins
        if error and not found:
            raise error
        return found


def limit(user: Stage) -> None:
    """Every verb of a limit."""
    one, other = (WindowKey("nightly", nth(number)) for number in (1, 2))
    acquire_slot(user.store, "reports", 1, one, "A", 30.0)
    acquire_slot(user.store, "reports", 1, other, "B", 30.0)
    user.store.trip.one(slot_renewal(user.store, "reports", one, "A", 30.0))
    release_slot(user.store, "reports", one, "A", forget=True)
    user.store.overdue("b", datetime.now(timezone.utc), 10, requests=ask_free_slots(user.store, {"reports": 1}))
    make_due(user.store, "reports", [other])


def schedules(user: Stage) -> None:
    """What the client does."""
    with closing(Schedules(url=user.url, redis_options=user.store.settings.redis_options)) as client:
        client.set("report", task="proj.report", schedule=60)
        client.pause("report")
        client.resume("report")
        client.changes("report")
        client.list()
        client.delete("report")
        client.set("report", task="proj.report", schedule=30)


def another_database(user: Stage) -> None:
    """Database 0 is where a connection begins; any other is selected."""
    with closing(Store(replace(user.store.settings, redis_url=user.url.replace("/0", "/1")))) as store:
        store.snapshot()


#: Of each right that the document names for one thing more: who does it, and its settings.
MORE: dict[str, tuple[Act, dict[str, Any]]] = {
    "acl-limits": (limit, {}),
    "acl-schedules": (schedules, {}),
    "acl-select": (another_database, {}),
    "acl-wait": (lambda user: user.load(), {"wait_replicas": 1}),
}


def test_each_right_is_needed(any_server: RedisServer) -> None:
    """With the document's list no verb is refused anything; without any one of it some verb is."""
    given = rights()
    assert refused(any_server, given, exercise) == set()
    for right in set(given) - {"+hlen", "+hscan", "+info"}:  # what only commands need: test_doc_redis
        found = refused(any_server, [other for other in given if other != right], exercise)
        assert any(each.startswith(right[1:].rstrip("*")) for each in found), right


@pytest.mark.parametrize("what", MORE)
def test_what_needs_some_more(any_server: RedisServer, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """With what the document names nothing of it is refused; each of these rights is needed."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)
    act, settings = MORE[what]
    more = rights(what)
    assert refused(any_server, [*rights(), *more], act, **settings) == set()
    for right in more:
        without = [*rights(), *(other for other in more if other != right)]
        assert right[1:] in refused(any_server, without, act, **settings)
