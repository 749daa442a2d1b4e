"""A scheduler's connection to the broker: it is known to live before anything is claimed, and never waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery.beat import Scheduler

from celery_once_beat.clock import steady
from celery_once_beat.logs import Outage, get_logger
from celery_once_beat.store import Published, Store
from celery_once_beat.wording import shown

from . import broker

logger = get_logger(__name__)


class BrokerConnection(Scheduler):
    """The part of the scheduler that knows the broker."""

    #: The verbs of windows in Redis.
    store: Store

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: What the broker does while it can't be used: "doesn't answer: …".
        self.broker_trouble = ""
        self.broker_outage = Outage(logger, ("broker_away", "broker_back"), "the broker answers again")
        self._broker_asked = 0.0
        self._alarm = broker.Alarm()
        super().__init__(*args, **kwargs)

    @cached_property
    def connection(self) -> Any:
        """As the base's, with publisher confirms, and never waiting for ever."""
        self._alarm = broker.Alarm()
        return self.app.connection_for_write(transport_options=broker.transport_options(self.app, self._alarm))

    def _ensure_connected(self) -> Any:
        # The base tries a hundred times, and nothing else happens meanwhile.
        return self.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)

    def broker_ready(self) -> bool:
        """Whether the broker answers: asked before each claim, and while it doesn't, once a second."""
        if self.broker_outage.lasts and steady() - self._broker_asked < 1.0:
            return False
        trouble = broker.why_away(self.connection)
        self._broker_asked = steady()
        # While the broker takes no messages, it is this connection that learns when it does again. Then a new one is
        # made, on which no confirm of an earlier message can come.
        if trouble or (self._alarm.was_on and not self._alarm.on):
            self._drop_broker()
        alive = not trouble and not self._alarm.on
        if alive:
            self.broker_outage.end()
        else:
            full = "takes no messages, since its memory or its disk is full"
            self.broker_trouble = f"doesn't answer: {trouble}" if trouble else full
            self.broker_outage.begin("the broker %s; nothing is claimed", self.broker_trouble)
        return alive

    def _drop_broker(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            broker.drop(connection)

    def _producer(self) -> Any:
        """The base's producer; None where there is no connection."""
        try:
            return None if self.broker_outage.lasts else self.producer
        except Exception as exc:  # noqa: BLE001  # every transport has errors of its own
            logger.debug("once: no producer: %s", exc)
            return None

    def publish_once(self, send: Callable[..., object]) -> tuple[Published, str]:
        """Call ``send``, which publishes what belongs to no window, with Celery's options for one try.

        Returns whether it went out, and why not; '' where the broker is away, which was logged.
        """
        producer = self._producer() if self.broker_ready() else None
        if producer is None:
            return Published.UNSURE, ""
        wait = max(self.store.settings.publish_timeout / 2, 1.0)
        try:
            with self._alarm.during_publish():
                send(producer=producer, retry=False, confirm_timeout=wait)
        except Exception as exc:  # noqa: BLE001  # every transport and serializer has errors of its own
            logger.debug("once: not published: %s", exc)
            self.__dict__.pop("producer", None)  # its channel may be that of a connection which is gone
            if not broker.is_to_blame(exc, producer):
                return Published.IMPOSSIBLE, shown(exc)
            if broker.hangs(exc):
                self._drop_broker()
            return Published.UNSURE, shown(exc) if self.broker_ready() else ""
        return Published.SENT, ""
