"""Bursts: messages that are written here, and over Redis travel together; what becomes of those that perhaps didn't."""

from __future__ import annotations

import base64
import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
import redis
from celery import Celery, signals
from kombu.serialization import registry
from processes import wait_until
from proxy import Proxy
from servers import RedisServer

from celery_once_beat import OnceScheduler, OnceTask
from celery_once_beat.beat.batches import Alarm, batch
from celery_once_beat.beat.learned import LearnedMessages
from celery_once_beat.beat.outgoing import OutgoingMessages
from celery_once_beat.beat.publishing import SLICE, Job
from celery_once_beat.rules import Timing
from celery_once_beat.store import Claimed
from celery_once_beat.windows import Window, format_instant

QUEUE = "bursts"
COUNT = SLICE + 50

pytestmark = pytest.mark.skipif(not hasattr(kombu.Producer, "batch"), reason="this kombu publishes one by one")


def work(_number: int) -> None:
    """A task that no worker of these tests runs."""


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[Proxy]:
    """The way to the broker; the store has one of its own."""
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def scheduler(broker: Proxy, redis_url: str, raw: redis.Redis, close_later: Callable[[Any], Any]) -> OnceScheduler:
    """All its entries are due."""
    app = close_later(Celery("tests", broker=broker.url(), set_as_current=False, task_cls=OnceTask))
    app.task(work, name="tests.work", shared=False)
    app.conf.update(
        task_default_queue=QUEUE,
        once_beat_redis_url=redis_url,
        once_beat_claim_lease=20.0,
        once_beat_publish_timeout=20.0,
        once_beat_recovery_interval=0.2,
        beat_schedule={
            f"entry-{number}": {"task": "tests.work", "schedule": timedelta(hours=1), "args": (number,)}
            for number in range(COUNT)
        },
    )
    scheduler: OnceScheduler = close_later(OnceScheduler(app))
    scheduler.tick()
    ago = format_instant(datetime.now(timezone.utc) - timedelta(hours=1))
    for name in app.conf.beat_schedule:
        raw.hset(scheduler.store.entry_key(name), mapping=dict.fromkeys(("born", "since", "cursor"), ago))
    scheduler.entries.restart()
    return scheduler


#: Texts that JSON, base64 or ``repr`` may write in other ways, and values of each kind.
ODD: tuple[Any, ...] = (
    "", "ü", "\U0001f600", "\\u0000id", "\0id", '"', "\n", "x" * 2000, 0, -1, 2**70, 1.5, True, None,
    [], {}, {"b": [1, {"c": None}], "a": "\u2028"}, {"window": "\0window"}, datetime(2026, 1, 2, tzinfo=timezone.utc),
)  # fmt: skip
#: What an entry's options may be, and whether its messages are written here.
OPTIONS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, True),
    ({"priority": 3}, True),
    ({"ignore_result": True, "queue": None}, True),
    ({"time_limit": 9, "soft_time_limit": 5}, True),
    ({"queue": "other", "routing_key": "other"}, True),
    ({"headers": {"tenant": "a"}}, False),
    ({"expires": 900}, False),
    ({"countdown": 5}, False),
    ({"serializer": "yaml"}, False),
    ({"compression": "zlib"}, False),
    ({"shadow": "other"}, False),
)


def anything(*_args: Any, **_kwargs: Any) -> None:
    """A task that no worker of these tests runs."""


class Ways(ExitStack):
    """The message of a window, made by Celery, and as it is written here."""

    def __init__(self, url: str, broker: str = "", **conf: Any) -> None:
        super().__init__()
        self.app = self.enter_context(Celery("tests", broker=broker or url, set_as_current=False, task_cls=OnceTask))
        self.app.task(anything, name="tests.any", shared=False)
        self.app.conf.update(once_beat_redis_url=url, **conf)
        self.scheduler = self.enter_context(closing(OnceScheduler(self.app)))
        self.learned = LearnedMessages(self.scheduler)
        self.start = datetime(2026, 1, 1, tzinfo=timezone.utc)

    @contextmanager
    def slice(self) -> Iterator[None]:
        producer = self.scheduler.producer
        with batch(producer, 10**6, Alarm()) as made, self.learned.slice(producer, made):
            yield

    def both(self, name: str, args: Any = (), kwargs: Any = None, **options: Any) -> tuple[list[Any], list[Any]]:
        """Return what each sends, of the first [] where it isn't written here; the delivery tag is left out."""
        self.start += timedelta(seconds=1)
        source = self.scheduler.Entry(name, "tests.any", args=args, kwargs=kwargs, options=options, app=self.app)
        window = Window(name, self.start, self.start + timedelta(seconds=1), tracked=True)
        outgoing = OutgoingMessages(str(uuid.uuid4()), window, name)
        prepared: Any = self.learned.prepare(source, outgoing, 5.0)
        if prepared:
            prepared()
        here = self.sent_here(prepared) if prepared else []
        row: Any = SimpleNamespace(timing=Timing())  # nothing else of it is read
        job = Job(row, self.start, Claimed(1, None))
        entry = self.scheduler._entry_to_send(source, window, job, outgoing)
        with outgoing.watched(), self.learned.learning(source, outgoing):
            self.scheduler.apply_entry(entry, producer=self.scheduler.producer)
        return here, self.sent_by_celery()

    def is_written(self, args: Any = ()) -> bool:
        """Whether one more message is written here."""
        source = self.scheduler.Entry("entry", "tests.any", args=args, options={}, app=self.app)
        outgoing = OutgoingMessages("id", Window("entry", self.start, None, tracked=True), "entry")
        return self.learned.prepare(source, outgoing, 5.0) is not None

    def sent_here(self, prepared: partial[object]) -> list[Any]:
        return [re.sub(_TAG, "", text) for text in prepared.args]

    def sent_by_celery(self) -> list[Any]:
        batch = self.scheduler.producer._batch_local.current
        return [re.sub(_TAG, "", text) for text in batch.session.pipeline.command_stack[-1][0][1:]]


class WaysOfCalls(Ways):
    """The same over another broker: what is in the queue."""

    def __init__(self, url: str, broker: str) -> None:
        super().__init__(url, broker)
        while self.sent_here():  # kombu keeps one memory in a process, with what other tests have left in it
            pass

    def sent_here(self, _: object = None) -> list[Any]:
        channel = self.scheduler.producer.channel
        for name in ("celery", "other"):
            queue = kombu.Queue(name, durable=True)(channel)
            queue.declare()
            if message := queue.get(no_ack=True):
                message.properties.pop("delivery_tag", None)
                kinds = message.content_type, message.content_encoding
                return [name, message.body, message.headers, message.properties, *kinds]
        return []

    sent_by_celery = sent_here


_TAG = r'(?<="delivery_tag": )"[^"]*"'


@pytest.fixture(params=["redis", "memory", pytest.param("amqp", marks=pytest.mark.long)])
def over_any(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Ways]:
    """Over each kind of broker."""
    kind: str = request.param
    broker = request.getfixturevalue("rabbit_url") if kind == "amqp" else "memory://"
    with Ways(redis_url) if kind == "redis" else WaysOfCalls(redis_url, broker) as made:
        yield made


def test_what_is_written_here_is_what_celery_writes(over_any: Ways) -> None:
    """Thousands of messages are the same byte for byte, made either way, but for the delivery tag."""
    chance, written, messages = random.Random(7), 0, 10_000 if type(over_any) is Ways else 2_000
    with over_any.slice():
        for number in range(messages):
            args = chance.choice([(), None, [number], (number, *chance.choices(ODD, k=2))])
            kwargs = chance.choice([{}, None, {chance.choice(("a", "ü", "id")): chance.choice(ODD)}])
            options, _ = chance.choice(OPTIONS[:5])
            name = chance.choice(["entry %d", "ü %d", '"%d"', "%%s %d"]) % number
            here, of_celery = over_any.both(name, args, kwargs, **options)
            assert not here or here == of_celery
            written += bool(here)
    assert written == messages - 2 * 5  # two of each kind are Celery's


@pytest.mark.parametrize(("options", "is_written"), OPTIONS, ids=str)
def test_which_messages_are_written_here(over_any: Ways, options: dict[str, Any], is_written: bool) -> None:
    """Those of which Celery's differ by their window alone."""
    with over_any.slice():
        made = [over_any.both("entry", (1,), **options) for _ in range(4)]
    assert [bool(here) for here, _ in made] == [False, False, is_written, is_written]


class _OtherTask(OnceTask):
    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **{**options, "headers": {**options["headers"], "tenant": "a"}})


def _hook(**_: Any) -> None:
    """A receiver of somebody's."""


def _route(*_: Any, **__: Any) -> dict[str, str]:
    return {"queue": "routed"}


#: What others may do to messages, also when their kind is known already: whose attribute is another one.
OTHERS: dict[str, tuple[Callable[[Ways], Any], str, Any]] = {
    "a router": (lambda ways: ways.app.amqp.router, "routes", [_route]),
    "a task's own apply_async": (
        lambda ways: ways.app.tasks["tests.any"], "__class__", type("Own", (_OtherTask,), {"abstract": True})
    ),
    "the app's own send_task": (lambda ways: ways.app, "send_task", _hook),
    "a scheduler's own apply_entry": (lambda ways: ways.scheduler, "apply_entry", _hook),
    "events": (lambda ways: ways.app.conf, "task_send_sent_event", True),
    "eager tasks": (lambda ways: ways.app.conf, "task_always_eager", True),
    "a receiver": (lambda _: signals.before_task_publish, "receivers", [((1, 1), _hook)]),
}  # fmt: skip


def test_a_prefix_of_the_brokers_keys(redis_url: str, raw: redis.Redis) -> None:
    """What is written here goes into the same queue as Celery's messages."""
    with Ways(redis_url, broker_transport_options={"global_keyprefix": "prefix:"}) as ways:
        with ways.slice():
            assert [bool(ways.both("entry")[0]) for _ in range(3)] == [False, False, True]
        assert raw.llen("prefix:celery") == 4  # the third one both ways


def test_a_serializer_of_somebodys(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what is written here, too: two messages may not have shown what it does."""
    stock = registry._encoders["json"]
    monkeypatch.setitem(
        registry._encoders, "json", stock._replace(encoder=lambda body: stock.encoder(body).replace("a ", "b "))
    )
    with Ways(redis_url) as ways, ways.slice():
        for args in ((), (), ("a ü",)):
            here, of_celery = ways.both("entry", args)
        assert here == of_celery


def test_what_raises_is_left_to_celery(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that can't be written, a result backend that is away."""

    def away(*_: Any) -> None:
        raise ConnectionError

    with Ways(redis_url) as ways:
        with ways.slice():
            assert [bool(ways.both("entry")[0]) for _ in range(3)] == [False, False, True]
            assert not ways.is_written([object()])
            assert not ways.is_written((1, object()))
        monkeypatch.setattr(ways.app.backend, "on_task_call", away)
        with ways.slice():
            assert not ways.is_written()


def test_the_setting(redis_url: str) -> None:
    """With it off Celery makes all messages."""
    with Ways(redis_url, once_beat_fast=False) as ways, ways.slice():
        assert not any(ways.both("entry")[0] for _ in range(3))


@pytest.mark.parametrize("other", OTHERS)
def test_what_others_do_to_messages(redis_url: str, other: str) -> None:
    """From the next slice on Celery makes them all."""
    of, name, value = OTHERS[other]
    with Ways(redis_url) as ways, pytest.MonkeyPatch.context() as patch:
        with ways.slice():
            assert [bool(ways.both("entry")[0]) for _ in range(3)] == [False, False, True]
        patch.setattr(of(ways), name, value)
        with ways.slice():
            assert not ways.is_written()


def sent(url: str) -> Counter[int]:
    """How often each entry's message is in the queue."""
    with redis.Redis.from_url(url) as client:
        messages: Any = client.lrange(QUEUE, 0, -1)
    bodies = [json.loads(base64.b64decode(json.loads(message)["body"])) for message in messages]
    return Counter(args[0] for args, _, _ in bodies)


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.long), False])
def test_messages_that_are_cut(scheduler, broker, redis_url, monkeypatch, caplog, together: bool, lost: str) -> None:
    """What perhaps didn't go out is published again: a batch as a whole, else that message. Of the rest nothing is."""
    if not together:
        monkeypatch.setattr(kombu.Producer, "supports_batch_publish", False)
    cut_at = b"LPUSH" if together else b'"once_entry": "entry-%d"' % (COUNT - 1)
    if lost == "reply":
        broker.lose_reply(of=cut_at)
    else:
        broker.cut_before(cut_at)
    least = COUNT + (lost == "reply")  # a worker refuses the second copy

    def all_sent() -> bool:
        scheduler.tick()
        return len(sent(redis_url)) == COUNT and sent(redis_url).total() >= least

    wait_until(all_sent, "each is sent", 60, 0.1)
    assert broker.lost == 1
    assert sent(redis_url).total() <= COUNT + (lost == "reply") * (SLICE if together else 1)
    failed = [record.action for record in caplog.records if hasattr(record, "action")].count("batch_failed")
    assert (failed, [kind.learned for kind in scheduler._learned._kinds.values()]) == (int(together), [True])
