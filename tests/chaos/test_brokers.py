"""Each kind of broker is done what is planned for it: a fault that finds nothing to befall would pass unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from amqp.exceptions import ChannelError
from chaos.brokers import RabbitBroker, RedisBroker
from chaos.cast import Cast
from chaos.faults import FAULTS, Fault, plan
from chaos.havoc import Havoc, method_of
from kombu import Connection
from ledger import Ledger
from processes import Processes, wait_until
from servers import RedisServer

KINDS = ["redis", pytest.param("rabbitmq", marks=pytest.mark.xdist_group("rabbitmq"))]


@pytest.fixture
def havoc(
    request: pytest.FixtureRequest, start_redis: Callable[..., RedisServer], tmp_path: Path, procs: Processes,
    ledger: Ledger,
) -> Iterator[Havoc]:  # fmt: skip
    """A system of which nobody runs yet, with a broker of that kind."""
    if request.param == "redis":
        broker = RedisBroker(start_redis())
    else:
        broker = RabbitBroker(request.getfixturevalue("rabbit_server"))
    with Cast(tmp_path, procs, ledger, start_redis(), broker) as cast:
        yield Havoc(cast)
    broker.close()


def publish(havoc: Havoc) -> int:
    """Let a beat publish some windows, and end it; return how many messages wait."""
    havoc._watch_messages()  # RabbitMQ has copies of what comes after that
    beat = havoc.cast.system.beat()

    def seen() -> bool:
        havoc._watch_messages()
        return len(havoc._seen) >= 3

    wait_until(seen, "messages are seen", 60)
    beat.kill()
    havoc.cast.system.check_law = False
    return waiting(havoc)


def waiting(havoc: Havoc) -> int:
    with Connection(havoc.cast.system.broker_url) as connection, suppress(ChannelError):  # a list of Redis, if empty
        return connection.default_channel.queue_declare(havoc.cast.system.queue, passive=True).message_count
    return 0


@pytest.mark.parametrize("kind", FAULTS)
def test_a_plan_has_only_faults_that_can_be_done(kind: str) -> None:
    """Each fault planned for a kind of broker has a method, and each kind of fault comes."""
    planned = {fault.kind for fault in plan(7, 300, 1, FAULTS[kind])}
    assert planned == set(FAULTS[kind])
    assert [name for name in planned if not hasattr(Havoc, method_of(name))] == []


def test_both_brokers_are_done_the_same() -> None:
    """The plans differ only in what a killed broker starts again from, which their names say."""
    redis, rabbitmq = (set(FAULTS[kind]) for kind in ("redis", "rabbitmq"))
    again = {"from its AOF", "with its durable queues"}
    assert redis ^ rabbitmq == {f"broker killed, restarted {each}" for each in again}


def test_as_many_faults_as_are_asked_for() -> None:
    """45 minutes with a fault every 0.9 s on average are 3,000 faults."""
    assert 2900 < len(plan(7, 45 * 60, 0.9, FAULTS["redis"])) < 3100


@pytest.mark.parametrize("havoc", KINDS, indirect=True)
@pytest.mark.long
def test_messages_are_doubled(havoc: Havoc) -> None:
    """What was seen waits once more, and the worker that gets it refuses it as a copy of its window."""
    before = publish(havoc)
    havoc.befall(Fault(0, "messages doubled", 1, 0))
    doubled = havoc.messages["doubled"]
    assert doubled == min(10, len(havoc._seen))
    assert waiting(havoc) == before + doubled
    havoc.cast.system.worker()
    ledger = havoc.cast.ledger
    wait_until(lambda: len(ledger.read("refused")) >= doubled, "the copies are refused", 60)


@pytest.mark.parametrize("havoc", KINDS, indirect=True)
def test_a_queue_is_purged(havoc: Havoc) -> None:
    """What waits is lost, and counted."""
    before = publish(havoc)
    havoc.befall(Fault(0, "queue purged", 1, 0))
    wait_until(lambda: havoc.messages["purged"] == before, "what waits is lost", 30)
    havoc.cast.heal()
    assert waiting(havoc) == 0
