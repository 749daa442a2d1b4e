"""Children that beats recover, ``apply_once(…, tracked=True)``: once a key and window, whoever is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from killpoints import POINTS
from processes import wait_until
from servers import free_port
from stage import MINUTE
from system import System

from celery_once_beat import OnceScheduler, OnceTask, Schedules, Window
from celery_once_beat.beat import Entries, as_loaded
from celery_once_beat.errors import SettingError
from celery_once_beat.features.keyed.beat import Children
from celery_once_beat.features.keyed.store import open_child, read_children
from celery_once_beat.features.orders.orders import OrderedBy, Orders
from celery_once_beat.lookup import Lookup
from celery_once_beat.rules import EntryPolicy
from celery_once_beat.status import make_report
from celery_once_beat.store import Begun, Claimed, Ending, Store, Unchanged, shard_of, store_of
from celery_once_beat.windows import WindowKey, decode_headers, parse_instant

USERS = ["ann", "bob", "carl"]
KILLED = [
    "worker.before_child", "worker.child_open", "worker.child_published", "worker.child_confirmed",  # in the parent
    "worker.body", "worker.before_finish", "beat.taken",
]  # fmt: skip


@pytest.fixture
def family(system: System) -> System:
    """An entry whose windows send a child for each user."""
    system.entries = {"tick": {"task": "apps.once_app.parent", "every": 2.0, "args": USERS}}
    system.settings = {"once_beat_lease": 4.0}
    return system


def child(user: str) -> str:
    return f"child:apps.once_app.work@tick:{user}"


def open_children(system: System) -> list[bytes]:
    with system.client() as client:
        opened = [client.zrange(key, 0, -1) for key in client.scan_iter("once:{*}:open")]
    return [member for members in opened for member in members if member.startswith(b"child:")]


def check_children(system: System, *, body_again: int = 0) -> None:
    """Each child of each window is done, by one execution; no message is kept any more."""
    wait_until(lambda: not open_children(system), "each child has its outcome", 60)
    ended = Counter((event["entry"], event["start"]) for event in system.ledger.read("finish"))
    expected = {(child(user), start) for user in USERS for start in system.starts()}
    assert {key for key in ended if key[0] != "tick"} == expected
    assert sum(ended[key] for key in expected) - len(expected) <= body_again
    with system.client() as client:
        for entry, start in expected:
            keys = system.store.keys.of_window(WindowKey(entry, parse_instant(start)), start)
            assert client.get(keys["run"]).startswith(b"done:done:"), keys
            assert not [field for field in client.hkeys(keys["entry"]) if field.startswith((b"m:", b"w:"))]
            assert 0 < client.pttl(keys["entry"]) <= 2 * 86_400_000


@pytest.mark.parametrize("point", [pytest.param(each, marks=pytest.mark.long) for each in KILLED[1:]] + KILLED[:1])
def test_whoever_is_killed_each_child_is_executed_once(family: System, point: str) -> None:
    """The parent's worker, the child's or a beat is killed between two steps, and the broker loses its messages."""
    assert point in POINTS
    family.kill_point = f"{point}:KILL"
    beats, workers = family.pair()
    if point == "beat.taken":
        family.wait_done(1)
        with family.procs_paused(*workers):
            wait_until(lambda: family.purge() > 0, "a message waits in the queue", 60)
    fired = family.wait_fired()
    family.wait_done(3)
    assert all(proc.alive for proc in (*beats, *workers) if proc is not fired), "a bystander ended"
    family.settle([beat for beat in beats if beat.alive][:1])
    family.check_each_once(body_again=1)
    check_children(family, body_again=1 if point == "worker.before_finish" else 0)


@pytest.mark.parametrize(
    "point",
    [
        "worker.body",
        pytest.param("beat.telling", marks=pytest.mark.long),
        pytest.param("beat.before_told", marks=pytest.mark.long),
    ],
)
def test_whoever_is_killed_a_failure_is_told_once(system: System, point: str) -> None:
    """The task of on_failure is a child of the window that failed."""
    entry = {"task": "apps.once_app.ending", "every": 2.0, "args": ["fails"]}
    system.entries = {"tick": {**entry, "options": {"once": {"on_failure": "apps.once_app.warn"}}}}
    system.settings = {"once_beat_lease": 4.0}
    system.kill_point = f"{point}:KILL"
    beats, _ = system.pair()
    system.wait_fired()
    wait_until(lambda: len(system.ledger.read("told")) >= 3, "three failures are told", 60)
    system.store.set_paused("tick", paused=True)
    wait_until(lambda: not system.account().open, "each window has its outcome", 60)
    told = lambda: system.ledger.read("told")  # noqa: E731
    wait_until(lambda: len(told()) >= len(system.starts()) and not open_children(system), "each is told", 60)
    assert sorted(event["start"] for event in told()) == system.starts()
    assert all(event["window"].startswith("child:apps.once_app.warn@tick:") for event in told())
    assert (max(event["attempt"] for event in told()) == 2) == (point == "worker.body")
    overdue = any("of 'child:" in line and "is overdue" in line for beat in beats for line in beat.log.splitlines())
    assert overdue == (point == "worker.body"), "only what was lost is overdue"


# -------------------------------------------------------------------------------------------------------- one process

WINDOW = Window("report", datetime(2026, 11, 21, 8, tzinfo=timezone.utc), None)


@pytest.fixture
def sender(redis_url: str) -> Iterator[Callable[..., Any]]:
    """Make an app with a task; gives the task."""
    apps = []

    def make(broker: str = redis_url, **options: Any) -> Any:
        app = Celery("sender", broker=broker, task_cls=OnceTask, set_as_current=False)
        app.conf.update(once_beat_redis_url=redis_url, task_default_queue="mails", broker_connection_timeout=0.2)
        app.conf.task_publish_retry = False
        app.conf.update(options.pop("settings", {}))
        apps.append(app)
        return app.task(mail, name=options.pop("name", "proj.mail"), shared=False, **options)

    yield make
    for app in apps:
        store_of(app).close()
        app.close()


def mail(*_: Any) -> None:
    """A task that nobody runs here."""


def send(mail: Any, key: str = "ann", **more: Any) -> Any:
    return mail.apply_once((key,), key=key, window=WINDOW, tracked=True, **more)


def queued(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return client.llen("mails")


def overdue(store: Store) -> list[WindowKey]:
    """The windows that a beat finds an hour from now."""
    shards = store.overdue("beat", datetime.now(timezone.utc) + timedelta(hours=1), 100).shards
    return [window for swept in shards for window in swept.windows]


def test_it_is_sent_once(sender: Callable[..., Any], redis_url: str) -> None:
    """Whoever calls again gets None, while it is open and once it has ended; a call whose reply is lost goes on.

    Its window names it, with its task's id.
    """
    mail = sender()
    result = send(mail)
    assert (send(mail), queued(redis_url)) == (None, 1)
    store = store_of(mail.app)
    (window,) = overdue(store)
    assert window.entry == "child:proj.mail@report:ann"
    assert read_children(store, "report", WINDOW.start) == [(window.entry, result.id)]
    begun = store.begin(window, "worker", 30.0)
    assert isinstance(begun, Begun)
    assert send(mail) is None
    store.finish(Ending(window, "worker", begun.fence, "done"))
    assert (send(mail), overdue(store)) == (None, [])
    with redis.Redis.from_url(redis_url) as client:
        hash_key = store.entry_key(window.entry)
        assert not [field for field in client.hkeys(hash_key) if field.startswith((b"m:", b"w:"))], "no message is kept"
        assert client.pttl(hash_key) <= store.settings.retention * 1000
    other, rules = WindowKey("child:other", window.start), EntryPolicy()
    for claimant, reply in (("one", Claimed(0, None)), ("one", Claimed(0, None)), ("two", Unchanged("taken"))):
        assert open_child(store, other, claimant, "{}", rules) == reply
    due_now = store.overdue("beat", datetime.now(timezone.utc), 100).shards
    assert not any(swept.windows for swept in due_now), "it is its caller's to publish"
    begun = store.begin(other, "worker", 30.0)
    assert isinstance(begun, Begun)
    assert open_child(store, other, "one", "{}", rules) == Unchanged("taken"), "its message is out"
    assert open_child(store, replace(other, start=other.start + MINUTE), "one", "{}", rules) == Claimed(0, None)
    store.finish(Ending(other, "worker", begun.fence, "done"))
    with redis.Redis.from_url(redis_url) as client:
        assert client.pttl(store.entry_key(other.entry)) > store.settings.retention * 1000, "the later one is open"


REFUSED = {
    "args": ((["x" * 70_000],), {}, r"found 70\d+ bytes of JSON, expected up to 65536"),
    "an object": (([object()],), {}, "can't be written as JSON"),
    "an option": (((),), {"link": "proj.other"}, "options: found 'link', expected compression"),
    "an id": (((),), {"task_id": "mine"}, "options: found 'task_id', expected"),
    "no window": (((),), {"window": None, "every": "1h"}, "tracked: found every=, expected window=self.window"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_kept_is_refused(sender: Callable[..., Any], redis_url: str, what: str) -> None:
    """Before anything is sent or opened, in one line that names the child."""
    args, more, words = REFUSED[what]
    mail = sender()
    with pytest.raises(SettingError, match=f"(?s)^proj.mail.*:ann.*{words}"):
        mail.apply_once(*args, key="ann", **{"window": WINDOW, "tracked": True, **more})
    assert (queued(redis_url), overdue(store_of(mail.app))) == (0, [])


def test_no_entry_is_named_as_a_child(sender: Callable[..., Any]) -> None:
    """Else its definition would make the messages of that child."""
    app = sender().app
    with pytest.raises(SettingError, match="not beginning with child:"):
        Schedules(app).set("child:proj.mail@report:ann", task="proj.mail", schedule=60)
    entries = Entries("beat", store_of(app).settings, app.tasks)
    with pytest.raises(SettingError, match="expected a name that doesn't begin with child:"):
        entries.make("child:x", SimpleNamespace(task="proj.mail", schedule=60, options={}))


def test_it_can_be_given_up(sender: Callable[..., Any], redis_url: str) -> None:
    """As an entry's window, if nobody knows its task any more, say; its parent doesn't send it again."""
    mail = sender()
    send(mail)
    store, name = store_of(mail.app), "child:proj.mail@report:ann"
    assert [*store.account(name).open] == [WINDOW.start]
    store.trip.send([("ZADD", store.keys.of_shard("open", shard_of(name)), 0, f"{name}@2026-11-21T08:00:00.000000Z")])
    loaded = as_loaded(Entries("", store.settings, mail.app.tasks), OnceScheduler, {}, frozenset())
    (shown,) = make_report(Lookup(store).overview([]), loaded).entries
    assert (shown.entry, shown.attention) == (name, ("1 overdue, a child that no beat has sent again",))
    assert Orders(store).abandon(name, [WINDOW.start], OrderedBy("anna")).gone == [WINDOW.start]
    assert (send(mail), overdue(store), store.account(name).open) == (None, [], {})
    assert store.account(name).apart == {"cancelled": 1}


def test_without_a_broker_a_beat_sends_it(system: System, sender: Callable[..., Any]) -> None:
    """The call returns the child's result; a beat that has a broker publishes the child, and a worker executes it."""
    system.entries = {}
    mail = sender(f"redis://127.0.0.1:{free_port()}/0", name="apps.once_app.work")
    result = mail.apply_once(key="ann", window=WINDOW, tracked=True, queue=system.queue)
    beat, worker = system.beat(), system.worker()
    wait_until(lambda: system.recorded("child:apps.once_app.work@report:ann"), "it is executed", 60)
    assert result.id
    assert beat.alive
    assert worker.alive


def test_foreign_messages_harm_no_other_child(sender, raw, caplog) -> None:
    """What isn't ours is named once, and stays open; the others are made of what is kept."""
    mail = sender()
    store = store_of(mail.app)
    for user in ("ann", "bob", "carl"):
        send(mail, user)
    windows = overdue(store)
    for user, text in (("ann", b"\x80\x04K\x07."), ("carl", b'{"v":1,"task":"os.system","link":1}')):
        (window,) = [each for each in windows if each.entry.endswith(user)]
        raw.hset(store.entry_key(window.entry), "m:2026-11-21T08:00:00.000000Z", text)
    entries = Entries("beat", store.settings, mail.app.tasks)
    children = Children(SimpleNamespace(store=store, app=mail.app, entries=entries))
    for _ in range(2):
        children.poll()
        found, unread = children.find(windows)
        assert [each.entry[-3:] for each in found] == ["bob"]
        assert sorted(each.entry[-3:] for each in unread) == ["ann", "arl"]
    assert [getattr(record, "action", "") for record in caplog.records].count("child_unreadable") == 2
    (entry,) = found.values()
    assert (entry.source.args, entry.source.task, entry.fingerprint) == (("bob",), "proj.mail", "child")
    children.poll(), children.poll()
    assert not children.wrong, "nobody looks for them any more"


def test_one_that_loses_its_headers_is_not_recovered(sender: Callable[..., Any], redis_url: str) -> None:
    """A task whose own ``apply_async`` drops the id runs plainly: it isn't published again and again."""

    class Careless(OnceTask):
        abstract = True

        def apply_async(self, args=None, kwargs=None, **_):
            return super().apply_async(args, kwargs)

    mail = sender(base=Careless)
    send(mail)
    assert (queued(redis_url), overdue(store_of(mail.app))) == (1, [])


def test_its_headers_are_those_of_a_window(sender: Callable[..., Any], raw: redis.Redis) -> None:
    """A worker executes it as an entry's window, and its id is that by which a beat would send it."""
    mail = sender(once_limit="mails", settings={"once_beat_limits": {"mails": 1}})
    result = send(mail, headers={"tenant": "7"})
    headers = json.loads(raw.lindex("mails", 0))["headers"]
    window = decode_headers(headers, result.id)
    assert window == Window("child:proj.mail@report:ann", WINDOW.start, None, limit="mails")
    assert headers["tenant"] == "7"
