"""Messages that are written here instead of by Celery: most of a message is the same for each window of a task.

What messages of one kind (a task's, with the same options) have in common is learned from Celery itself. The first is
taken apart; what would be written for the second has to be what Celery has written. From then on only what differs by
window is made anew. Over Redis that is the text of the message, byte for byte, and a slice's texts are pushed together.
Over other brokers it is what Celery asks kombu's producer to publish. This goes while all that Celery calls on the way
is its own code: see ``_is_stock``. Any other message is made by Celery.

What is learned is forgotten after a minute, so that configuration which is changed at run time counts then.

If the process dies before the push, the windows are overdue after ``claim_lease``, as after any lost publish.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from types import FunctionType
from typing import Any

import celery
import kombu
from celery import beat, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps as serialize
from kombu.serialization import registry  # type: ignore[attr-defined]  # its stubs lack it
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

import celery_once_beat
from celery_once_beat.clock import steady
from celery_once_beat.logs import get_logger
from celery_once_beat.windows import HEADERS

from .batches import BatchPublishError
from .outgoing import OutgoingMessages

logger = get_logger(__name__)

#: Seconds for which what was learned counts.
_KEPT = 60.0
#: Options of an entry that are the same in each of its messages.
_FIXED = {"queue", "exchange", "routing_key", "priority", "ignore_result", "time_limit", "soft_time_limit"}
#: Where the code stands that is Celery's, kombu's or this package's.
_STOCK = tuple(f"{Path(str(each.__file__)).parent}{os.sep}" for each in (celery, kombu, celery_once_beat))
#: A key and a text; or a body, and the options with which it is published.
Message = tuple[Any, Any]
_HOLE = re.compile(r'"window": "\\u0000window"|"\\u0000(\w+)"')


def _is_stock(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(_STOCK)


def _are_stock(of: Any, *names: str) -> bool:
    """Whether these methods are Celery's, kombu's or this package's, whoever stands in the line of bases."""
    places = [vars(of), *map(vars, type(of).__mro__)]
    return all(_is_stock(place[name]) for place in places for name in names if name in place)


class _Text:
    """Messages of one kind over Redis: their text in pieces, between which stands what differs."""

    def __init__(self, message: Message, queue: str | None) -> None:
        self._key, text = message
        self.queue = queue
        #: The second message was as it would have been written here.
        self.learned = False
        fields = json.loads(text)
        self._embed = json.loads(base64.b64decode(fields["body"]))[2]
        self._serializer = registry.type_to_name[fields["content-type"]]
        headers, properties = fields["headers"], fields["properties"]
        self.ignores_result = headers["ignore_result"]
        fields["body"] = "\0body"
        properties.update(correlation_id="\0id", delivery_tag="\0tag")
        headers.update(id="\0id", root_id="\0id", argsrepr="\0argsrepr", kwargsrepr="\0kwargsrepr")
        fields["headers"] = {"window" if name in HEADERS else name: value for name, value in headers.items()}
        fields["headers"]["window"] = "\0window"
        parts = _HOLE.split(dumps(fields))
        self._texts, self._holes = parts[::2], [hole or "window" for hole in parts[1::2]]

    @staticmethod
    @contextmanager
    def watched(producer: Any, batch: Any) -> Iterator[list[Any]]:
        """Collect the commands that Celery puts into its batch in the block."""
        before = len(batch.state.session.pipeline.command_stack) if batch.state.session else 0
        sent: list[Any] = []
        yield sent
        prefix = producer.channel.global_keyprefix  # which each push puts before the key
        sent += [(prefix, each) for each in batch.state.session.pipeline.command_stack[before:]]

    @staticmethod
    def read(sent: Any) -> tuple[Message, Any]:
        """Return a message, and what it has of its own besides its window: its delivery tag."""
        prefix, ((name, key, text), _) = sent
        if name != "LPUSH":
            raise ValueError(f"found {name}, expected LPUSH")
        return (key.removeprefix(prefix), text), json.loads(text)["properties"]["delivery_tag"]

    def write(
        self, args: Any, kwargs: dict[str, Any], reprs: dict[str, str], headers: Mapping[str, Any], tag: str
    ) -> Message:
        """Return key and text of a message with these window's headers."""
        _, _, body = serialize((args, kwargs, self._embed), self._serializer)
        given = {
            "body": quoted(base64.b64encode(body if isinstance(body, bytes) else body.encode()).decode()),
            "id": quoted(headers["once_id"]),
            "window": json.dumps(headers)[1:-1],
            "tag": quoted(tag),
            **{name: quoted(text) for name, text in reprs.items()},
        }
        parts = [self._texts[0]]
        for hole, text in zip(self._holes, self._texts[1:], strict=True):
            parts += given[hole], text
        return self._key, "".join(parts)


class _Call:
    """Messages of one kind over other brokers: what kombu's producer is asked to publish."""

    def __init__(self, message: Message, queue: str | None) -> None:
        (_, _, self._embed), self._options = message
        self.queue = queue
        self.learned = False
        self._headers = {name: value for name, value in self._options["headers"].items() if name not in HEADERS}
        self.ignores_result = self._headers["ignore_result"]

    @staticmethod
    @contextmanager
    def watched(producer: Any, _batch: Any) -> Iterator[list[Any]]:
        """Collect what Celery asks the producer to publish in the block."""
        publish, sent = producer.publish, []

        def noted(body: Any, **options: Any) -> Any:
            sent.append((body, options))
            return publish(body, **options)

        producer.publish = noted
        try:
            yield sent
        finally:
            del producer.publish

    @staticmethod
    def read(sent: Any) -> tuple[Message, Any]:
        """Return a message, and what it has of its own besides its window: how long the broker has to confirm it."""
        return sent, sent[1]["confirm_timeout"]

    def write(
        self, args: Any, kwargs: dict[str, Any], reprs: dict[str, str], headers: Mapping[str, Any], timeout: float
    ) -> Message:
        """Return body and options of a message with these window's headers."""
        sent_as = headers["once_id"]
        made = {**self._headers, "id": sent_as, "root_id": sent_as, **reprs, **headers}
        differ = {"headers": made, "correlation_id": sent_as, "confirm_timeout": timeout}
        return (args, kwargs, self._embed), {**self._options, **differ}


class LearnedMessages:
    """What one beat has learned, and the texts that it has written and not pushed yet."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._kinds: dict[object, _Text | _Call | None] = {}
        self._since = -_KEPT
        #: The producer of this slice, and its batch; None where no message may be written here.
        self._producer: Any = None
        self._batch: Any = None
        #: How messages of this slice are written.
        self._form: type[_Text | _Call] = _Call
        #: Of this slice: how Celery writes arguments down, and what it calls with each task.
        self._amqp: Any = None
        self._levels = 3
        self._on_task_call: Any = None
        #: The tasks whose messages nobody but Celery makes, in this slice; None: somebody does.
        self._stock: dict[str, Any] = {}
        #: By key of a queue, the texts to push.
        self._texts: dict[str, list[str]] = {}

    @contextmanager
    def slice(self, producer: Any, batch: Any) -> Iterator[None]:
        """In the block, messages may be written; texts are pushed at its end. Raises BatchPublishError."""
        app = self._scheduler.app
        if steady() - self._since > _KEPT:
            self._kinds, self._since = {}, steady()
        self._texts, self._stock = {}, {}
        self._producer = producer if self._may_write(producer) else None
        if self._producer is not None:
            self._amqp, self._on_task_call = app.amqp, app.backend.on_task_call
            self._levels = app.conf.get("task_repr_maxlevels", 3)
        over_redis = batch is not None and type(producer.channel).__module__ == "kombu.transport.redis"
        self._batch, self._form = batch, _Text if over_redis else _Call
        try:
            yield
            if self._texts:
                self._push()
        finally:
            self._producer = self._batch = None

    def _push(self) -> None:
        try:
            with self._producer.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
                for key, texts in self._texts.items():
                    pipeline.lpush(key, *texts)
                pipeline.execute()
        except Exception as exc:
            raise BatchPublishError("the push to Redis failed, and may have been carried out") from exc

    def _may_write(self, producer: Any) -> bool:
        """Whether nobody but Celery makes messages."""
        app = self._scheduler.app
        watched = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
        return (
            producer is not None
            and self._scheduler.store.settings.fast
            and not app.conf.task_always_eager
            and not app.conf.task_send_sent_event
            and all(isinstance(route, MapRoute) for route in app.amqp.router.routes or ())
            and all(_is_stock(receiver) for signal in watched for _, receiver, *_ in signal.receivers or ())
            and _are_stock(self._scheduler, "apply_entry", "apply_async")
            and _are_stock(app, "send_task")
            and type(app.amqp) is AMQP
            and _is_stock(app.amqp.send_task_message)
            and _are_stock(producer, "publish")
        )

    def _kind_of(self, source: Any) -> object | None:
        """Return what messages have in common that are of one kind; None where the entry's may differ in more."""
        options = {name: value for name, value in source.options.items() if name != "once" and value is not None}
        if (
            self._producer is None
            or not options.keys() <= _FIXED
            or not {*map(type, options.values())} <= {str, int, float, bool}
            or type(source.args) not in (list, tuple, type(None))
            or type(source.kwargs) not in (dict, type(None))
            or any(
                isinstance(each, beat.BeatLazyFunc) for each in (*(source.args or ()), *(source.kwargs or {}).values())
            )
            or not source.name.isprintable()
        ):
            return None
        if source.task not in self._stock:
            task = self._scheduler.app.tasks.get(source.task)
            is_stock = (
                task is not None
                and getattr(task, "_dump_pydantic_arguments", None) is None
                and _are_stock(task, "apply_async", "shadow_name", "_get_exec_options")
            )
            self._stock[source.task] = task if is_stock else None
        return None if self._stock[source.task] is None else (self._form, source.task, *sorted(options.items()))

    def prepare(self, source: Any, outgoing: OutgoingMessages, confirm_timeout: float) -> Callable[[], object] | None:
        """Write a window's message if its kind is learned, and return what sends it; else return None."""
        kind = self._kinds.get(self._kind_of(source))
        if kind is None or not kind.learned:
            return None
        try:
            task = self._stock[source.task]
            if task.typing:
                task.__header__(*(source.args or ()), **(source.kwargs or {}))
            message = self._write(kind, source, outgoing, uuid() if self._form is _Text else confirm_timeout)
            if not kind.ignores_result:
                self._on_task_call(self._producer, outgoing.task_id)
        except Exception:  # noqa: BLE001  # Celery raises it, too, and it is logged then
            return None
        outgoing.queue = kind.queue
        return partial(self._send, *message)

    def _write(self, kind: _Text | _Call, source: Any, outgoing: OutgoingMessages, own: Any) -> Message:
        args, kwargs = list(source.args or ()) or (), dict(source.kwargs or {})  # as Celery has them by then
        reprs = {
            "argsrepr": saferepr(args, self._amqp.argsrepr_maxsize, maxlevels=self._levels) if args else "()",
            "kwargsrepr": saferepr(kwargs, self._amqp.kwargsrepr_maxsize, maxlevels=self._levels) if kwargs else "{}",
        }
        return kind.write(args, kwargs, reprs, outgoing.headers, own)

    def _send(self, to: Any, what: Any) -> None:
        if self._form is _Text:
            self._texts.setdefault(to, []).append(what)
        else:
            self._producer.publish(to, **what)

    @contextmanager
    def learning(self, source: Any, outgoing: OutgoingMessages) -> Iterator[None]:
        """Learn from the message that Celery sends in the block."""
        kind_of = self._kind_of(source)
        if kind_of is None:
            yield
            return
        with self._form.watched(self._producer, self._batch) as sent:
            yield
        known = self._kinds.get(kind_of)
        if outgoing.lost or len(sent) != 1 or (kind_of in self._kinds and known is None):
            return
        try:
            message, own = self._form.read(sent[0])
            if known is None:
                self._kinds[kind_of] = self._form(message, outgoing.queue)
                return
            known.learned = self._write(known, source, outgoing, own) == message
        except Exception as exc:  # noqa: BLE001  # it has another shape
            logger.debug("once: messages of %r can't be written here: %s", source.task, exc)
            known = None
        if known is None or not known.learned:
            self._kinds[kind_of] = None
