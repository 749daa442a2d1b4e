"""A beat's connection to the broker: it is asked before each claim, and no wait for it is endless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from amqp.exceptions import MessageNacked
from celery.beat import Scheduler
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from celery_once_beat.clock import steady
from celery_once_beat.logs import Outage, get_logger
from celery_once_beat.store import Published, Store
from celery_once_beat.wording import failure_words, printable, shown, without_passwords

from .batches import Alarm, BatchPublishError, Confirms
from .guard import guard

logger = get_logger(__name__)


def transport_options(app: Any, alarm: Alarm) -> dict[str, Any]:
    """Options for a connection on which windows are published: publisher confirms, and no endless waits.

    The app's own options go first.
    """
    conf = app.conf
    url = conf.broker_write_url or conf.broker_url or "amqp://"
    timeout = float(conf.broker_connection_timeout or 4)
    scheme = (url if isinstance(url, str) else url[0]).partition("://")[0]
    options: dict[str, Any] = {}
    if scheme in ("amqp", "amqps", "pyamqp", "pyamqps"):
        options = {"confirm_publish": True, "read_timeout": timeout, "write_timeout": timeout}
        options.update(on_blocked=alarm.blocked, on_unblocked=alarm.unblocked)
    elif scheme in ("redis", "rediss", "redis+socket", "sentinel"):
        options = {"socket_timeout": timeout}
    return {key: value for key, value in options.items() if key not in (conf.broker_transport_options or {})}


def broadcast_entries(app: Any, entries: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the beat entries that every worker gets a copy of (kombu's ``Broadcast``).

    An entry that can't be routed is skipped: its publish logs why.
    """
    try:
        if not any(isinstance(queue, Broadcast) for queue in app.amqp.queues.values()):
            return  # nearly always; the app's routers may be slow
    except Exception as exc:  # noqa: BLE001  # a user's queues
        logger.debug("once: the app's queues can't be read: %s", exc)
        return
    for entry in entries:
        if isinstance(_route(app, entry.task, entry.options or {}, entry.args, entry.kwargs), Broadcast):
            yield entry.name


def _route(app: Any, name: str, options: Mapping[str, Any], args: Any, kwargs: Any) -> Any:
    """Return the queue that the app's routers say, an object or a name; None where they say none, or raise."""
    with guard(lambda why: logger.debug("once: task %r can't be routed: %s", name, why), timed=False):
        task = app.tasks.get(name)
        routed = {"queue": getattr(task, "queue", None), **options}
        return app.amqp.router.route(routed, name, args, kwargs, task).get("queue")
    return None


def why_away(connection: Any) -> str:
    """Ask the broker itself; connects if need be, with one try. Never raises.

    Returns '' if it answers; if not, its URL without the password, and why.
    """
    where = ""
    try:
        where = f"{without_passwords(connection.as_uri())}: "
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        client: Any = getattr(connection.default_channel, "client", None)
        if hasattr(client, "ping"):  # kombu's virtual transports over Redis
            client.ping()
        elif connection.transport.driver_type == "amqp":
            _look_for_close(connection)
        return ""
    except Exception as exc:  # noqa: BLE001  # every transport has errors of its own
        return where + printable(failure_words(exc, "message"))


def drop(connection: Any) -> None:
    """Close a useless connection without waiting for the broker's answer. Never raises."""
    try:
        close_socket = getattr(getattr(connection, "_connection", None), "collect", None)  # py-amqp's
        if close_socket is not None:
            close_socket()
        connection.release()
    except Exception as exc:  # noqa: BLE001  # it is broken anyway
        logger.debug("once: the broken connection couldn't be released: %s", exc)


def is_to_blame(error: BaseException, producer: Any) -> bool:
    """Whether a publish failed for the broker or the way to it, and not for what was to be published."""
    # A refusal (MessageNacked) is of the transport in py-amqp's newer releases alone.
    names = ("connection_errors", "channel_errors", "recoverable_connection_errors", "recoverable_channel_errors")
    connection = getattr(producer, "connection", None)
    of_transport = [kind for name in names for kind in getattr(connection, name, ())]
    # Transports over Redis count a KeyError: kombu raises it for a compression that it doesn't know.
    kinds = [kind for kind in of_transport if kind.__module__ != "builtins" or issubclass(kind, OSError)]
    return _is_any(error, (OperationalError, BatchPublishError, MessageNacked, OSError, *kinds))


def hangs(error: BaseException) -> bool:
    """Whether a publish failed since the broker didn't answer in time."""
    return _is_any(error, (TimeoutError,))


def _is_any(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        wraps = type(cause) is OperationalError and cause.__cause__ is not None  # kombu's wrapper: its cause decides
        if isinstance(cause, kinds) and not wraps:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _look_for_close(connection: Any) -> None:
    """Read what a RabbitMQ may have sent meanwhile: a close, or the end of the socket, raises."""
    until = steady() + 0.1
    while steady() < until:
        try:
            connection.drain_events(timeout=0.001)
        except TimeoutError:
            return


class BrokerConnection(Scheduler):
    """The part of the scheduler that knows the broker."""

    #: The verbs of windows in Redis.
    store: Store

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: What the broker does while it can't be used: "doesn't answer: …".
        self.broker_trouble = ""
        self.broker_outage = Outage(logger, ("broker_away", "broker_back"), "the broker answers again")
        self._broker_asked = 0.0
        self._alarm = Alarm()
        super().__init__(*args, **kwargs)

    @cached_property
    def connection(self) -> Any:
        """As the base's, with publisher confirms, and never waiting for ever."""
        self._alarm = Alarm()
        return self.app.connection_for_write(transport_options=transport_options(self.app, self._alarm))

    @cached_property
    def producer(self) -> Any:
        """As the base's; over RabbitMQ its messages may be confirmed together."""
        producer: Any = super().producer
        channel = producer.channel
        fast = self.store.settings.fast and getattr(channel.connection, "confirm_publish", False)
        if fast and not hasattr(channel, "once_confirms"):
            Confirms(channel)
        return producer

    def _ensure_connected(self) -> Any:
        # The base tries a hundred times, and nothing else happens meanwhile.
        return self.connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)

    def broker_ready(self) -> bool:
        """Whether the broker answers: asked before each claim, and while it doesn't, once a second."""
        if self.broker_outage.lasts and steady() - self._broker_asked < 1.0:
            return False
        trouble = why_away(self.connection)
        self._broker_asked = steady()
        # Only this connection learns that an alarm is over. Then a new one is made: on this one, confirms of messages
        # that were given up may still come.
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

    def _try_broker(self, *, hung: bool) -> bool:
        """Return whether the broker answers after a publish that may have failed. ``hung``: the publish timed out."""
        self.__dict__.pop("producer", None)  # its channel may be closed
        if hung:
            self._drop_broker()  # a late answer would be taken for that to the next message
        return self.broker_ready()

    def _drop_broker(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            drop(connection)

    def _producer(self) -> Any:
        """The base's producer; None where there is no connection."""
        try:
            return None if self.broker_outage.lasts else self.producer
        except Exception as exc:  # noqa: BLE001  # every transport has errors of its own
            logger.debug("once: no producer: %s", exc)
            return None

    def publish_once(self, send: Callable[..., object]) -> tuple[Published, str]:
        """Call ``send``, which publishes what belongs to no window, with Celery's options for one try.

        Returns whether it went out, and if not, why: '' if the broker is away, which was logged.
        """
        producer = self._producer() if self.broker_ready() else None
        if producer is None:
            return Published.UNSURE, ""
        wait = max(self.store.settings.publish_timeout / 2, 1.0)
        try:
            with self._alarm:
                send(producer=producer, retry=False, confirm_timeout=wait)
        except Exception as exc:  # noqa: BLE001  # every transport and serializer has errors of its own
            logger.debug("once: not published: %s", exc)
            answers = self._try_broker(hung=hangs(exc))
            if not is_to_blame(exc, producer):
                return Published.IMPOSSIBLE, shown(exc)
            return Published.UNSURE, shown(exc) if answers else ""
        return Published.SENT, ""
