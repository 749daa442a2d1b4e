"""RabbitMQ as the broker: confirms, connections cut during a publish, quorum queues, redelivery, its death."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from kombu import Connection
from processes import wait_until
from proxy import AmqpProxy
from servers import RabbitServer
from system import EVERY_SECOND, System, once_soon, rare

from celery_once_beat.settings import BEAT_TTL
from celery_once_beat.windows import parse_instant, task_id

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("rabbitmq")]


@pytest.fixture
def rabbit(rabbit_server: RabbitServer, system: System) -> Iterator[RabbitServer]:
    """The session's node, as the broker of ``system``; a message that isn't confirmed is the only thing overdue."""
    system.broker_url = rabbit_server.url()
    system.settings = {"once_beat_start_timeout": 600.0}
    yield rabbit_server
    rabbit_server.ctl("set_vm_memory_high_watermark", "0.4")


@pytest.fixture
def proxy(rabbit: RabbitServer) -> Iterator[AmqpProxy]:
    with AmqpProxy(rabbit.port) as proxy:
        yield proxy


#: The policy of a queue that refuses what is more than two messages, with a nack.
FULL = json.dumps({"max-length": 2, "overflow": "reject-publish"})


def test_messages_that_the_broker_refuses(rabbit: RabbitServer, system: System) -> None:
    """They aren't taken for published: windows stay open, are published again soon, and are executed once.

    However often: that the broker refuses isn't the message's fault, so max_attempts doesn't count here.
    """
    system.settings |= {"once_beat_max_attempts": 2}

    def most_overdue() -> int:
        overdue = Counter(re.findall(r"window (\S+) of 'tick' is overdue, to be published again", beat.log))
        return max(overdue.values(), default=0)

    # It is set before the queue is longer: a limit that comes later drops what is beyond it.
    rabbit.ctl("set_policy", "--apply-to", "queues", system.queue, f"^{system.queue}$", FULL)
    beat = system.beat()
    wait_until(lambda: most_overdue() >= 2, "a window is published a third time", 60)
    assert "Message Error" in beat.log
    assert system.outcomes() == {}
    system.store.set_paused("tick", paused=True)
    rabbit.ctl("clear_policy", system.queue)
    assert beat.alive
    system.worker(pool="solo").wait_ready()
    system.settle([beat], timeout=60)
    system.check_each_once()


def test_a_memory_alarm(rabbit: RabbitServer, system: System) -> None:
    """RabbitMQ takes no messages: beats claim nothing, are heard of all the time, and end when they are told to.

    When it is over they go on. What a beat had claimed by then it sends, untracked or not, and no window runs twice.
    """
    system.entries = {**EVERY_SECOND, **{f"plain{n}": {"task": "apps.once_app.plain", "every": 2.0} for n in range(5)}}
    system.settings |= {"once_beat_claim_lease": 10.0, "once_beat_publish_timeout": 10.0}
    rabbit.ctl("set_vm_memory_high_watermark", "0.0000001")
    beats = [system.beat("beat1"), system.beat("beat2", entries=EVERY_SECOND)]
    for beat in beats:
        beat.wait_log("the broker takes no messages, since its memory or its disk is full; nothing is claimed", 60)
    cursor = system.account().cursor
    wait_until(lambda: datetime.now(timezone.utc) > cursor + timedelta(seconds=BEAT_TTL + 3), "windows pass", 60)
    assert len(system.store.snapshot().beats) == 2
    assert system.account().cursor == cursor
    beats.pop().stop()
    rabbit.ctl("set_vm_memory_high_watermark", "0.4")
    beats[0].wait_log("the broker answers again", 60)
    system.worker(pool="prefork", concurrency=2).wait_ready()
    system.wait_done(2)
    system.settle(beats, *system.entries)
    sent = sum(system.outcomes(f"plain{n}").get("untracked", 0) for n in range(5))
    wait_until(lambda: len(system.ledger.read("start", name="plain")) >= sent, "each untracked window is executed", 60)
    assert len(system.ledger.read("start", name="plain")) == sent
    assert not system.ledger.finished_twice("tick")


@pytest.mark.parametrize("at", ["basic.publish", "basic.ack"])
@pytest.mark.parametrize("away", [False, True])
def test_a_connection_cut_during_a_publish(proxy: AmqpProxy, system: System, at: str, away: bool) -> None:
    """Before the message, or before its confirm: it is published again under the same id, a second copy is refused.

    Recovery does that, unless a worker has begun it by then.
    """
    system.settings["once_beat_lease"] = 60.0  # a body that stands still with its worker isn't taken for dead
    worker = system.worker(pool="solo").wait_ready()
    beat = system.beat(BROKER_URL=proxy.url())
    system.wait_done(1)
    with system.procs_paused(worker):  # it would close the window before a beat looks for it
        beat.wait_log("Sending due", since=len(beat.log))  # so the last message's confirm is there, however late
        proxy.cut_at(at, away=away)
        wait_until(lambda: proxy.lost, "the connection is cut", 30)
        if away:
            beat.wait_log("the broker doesn't answer: ")
            proxy.away = False
            beat.wait_log("the broker answers again")
            beat.wait_log("is overdue, to be published again")
    system.wait_done(2)
    system.settle([beat], timeout=60)
    system.check_each_once()
    twice = away and at == "basic.ack"  # else its worker may have been there before a beat looked for it
    wait_until(lambda: len(system.refused()) >= twice, "the second copy is refused", 20)
    copies = Counter(re.findall(r"Task apps\.once_app\.work\[([\w-]+)\] received", worker.log))
    assert set(copies) == {task_id("once:", "tick", parse_instant(start)) for start in system.starts()}
    assert twice <= sum(copies.values()) - len(copies) == len(system.refused()) <= (at == "basic.ack")


def test_messages_of_a_slice_are_confirmed_together(proxy: AmqpProxy, system: System) -> None:
    """All are sent before the first one's confirm is there: twenty don't take twenty round trips."""
    # They are due at one instant, soon, and not again within the test.
    system.entries = {f"tick{n}": {"task": "apps.once_app.work", **once_soon()} for n in range(20)}
    system.settings |= {"once_beat_claim_lease": 20.0, "once_beat_publish_timeout": 20.0}
    proxy.hold("basic.ack", until=lambda: proxy.methods.count("basic.publish") >= 20)
    system.worker().wait_ready()
    beat = system.beat(BROKER_URL=proxy.url())
    for entry in system.entries:
        wait_until(lambda of=entry: system.outcomes(of) == {"done": 1}, f"{entry} is done", 90)
    assert proxy.held
    beat.stop()
    assert proxy.methods.count("basic.publish") == 20, "none is sent twice"


@pytest.mark.parametrize("why", ["its queue is full", "its queue differs", "its exchange is gone", "it has no route"])
def test_one_of_a_slice_is_refused(rabbit: RabbitServer, system: System, why: str) -> None:
    """The others each run once, and none is blamed. Later windows of the refused one travel alone, and break no slice.

    Nor do those behind an error for which RabbitMQ closed the channel.
    """
    # Each declares a queue of its own: then the broker's answer to an earlier message is read.
    queues = [f"{system.queue}-{n}" for n in range(5)]
    tick = {"task": "apps.once_app.work", "every": 2.0}
    system.entries = {f"tick{n}": {**tick, "options": {"queue": queue}} for n, queue in enumerate(queues)}
    bad = f"{system.queue}-bad"
    options = {
        "its queue is full": {"queue": bad},
        "its queue differs": {"queue": bad},
        "its exchange is gone": {"exchange": bad, "routing_key": bad},
        "it has no route": {"exchange": "amq.direct", "routing_key": bad, "mandatory": True},
    }
    system.entries["bad"] = {**tick, "options": options[why]}
    rabbit.ctl("set_policy", "--apply-to", "queues", bad, f"^{bad}$", FULL)
    if why == "its queue differs":
        with Connection(rabbit.url()) as connection:
            connection.default_channel.queue_declare(bad, durable=True)  # and deleted by itself
    system.worker(extra_args=["-Q", ",".join(queues)]).wait_ready()
    beat = system.beat()
    system.wait_done(6, "tick0")
    system.store.set_paused("bad", paused=True)
    system.settle([beat], *(each for each in system.entries if each != "bad"), timeout=60)
    for n in range(5):
        system.check_each_once(f"tick{n}")
    assert beat.log.count("it isn't known whether they were published") <= 1
    assert set(re.findall(r"apply scheduled task (\S+):", beat.log)) == {"bad"}
    assert len(system.account("bad").open) == len(system.starts("bad"))
    rabbit.ctl("clear_policy", bad)


def test_redelivery_while_it_executes(proxy: AmqpProxy, system: System) -> None:
    """A worker loses its connection while its body runs: the broker delivers the message again, which is refused."""
    system.settings |= {"task_acks_late": True, "once_beat_lease": 30.0}
    system.worker("cut-off", env={"BROKER_URL": proxy.url()}).wait_ready()
    system.entries = {"tick": {"task": "apps.once_app.work", "args": [16.0], **rare()}}
    beat = system.beat()
    (event,) = wait_until(lambda: system.ledger.read("start"), "a body runs", 60)
    system.store.set_paused("tick", paused=True)
    system.worker("other").wait_ready()
    proxy.away = True
    proxy.cut()
    (refused,) = wait_until(system.refused, "the other worker refuses it", 30)
    assert (refused["start"], refused["reason"], refused["redelivered"]) == (event["start"], "running", True)
    assert not system.ledger.read("finish"), "the body still runs"
    proxy.away = False
    system.settle([beat])
    system.check_each_once()


def test_rabbitmq_is_killed_under_load(system: System) -> None:
    """Killed and started again under load: no window is lost, none is finished twice, no beat ends."""
    system.entries = {f"tick{n}": {"task": "apps.once_app.work", "every": 0.5} for n in range(4)}
    # No worker dies; a broker that starts is slow, and not away again.
    system.settings = {"once_beat_lease": 30.0, "broker_connection_timeout": 5.0}
    with RabbitServer.start() as rabbit:
        system.broker_url = rabbit.url()
        beats, workers = system.pair(pool="prefork", concurrency=2)
        system.wait_done(4, "tick0", timeout=60)
        rabbit.kill()
        for beat in beats:
            beat.wait_log("the broker doesn't answer: ")
        rabbit.restart()
        for beat in beats:
            beat.wait_log("the broker answers again", 60)
        system.wait_done(4, "tick0", timeout=60)
        system.settle([], *system.entries)
        for entry in system.entries:
            system.check_each_once(entry)
        assert all(proc.alive for proc in (*beats, *workers))
        for beat in beats:
            assert beat.log.count("the broker doesn't answer") == beat.log.count("the broker answers again") == 1
            beat.stop()
