"""Messages that are written here instead of by Celery: most of a message is the same for each window of a task.

What messages of one kind (a task's, with the same options) have in common is learned from Celery itself. The first is
taken apart; what would be written for the second has to be what Celery has written, byte for byte. From then on only
what differs by window is made anew, and a slice's messages are pushed together. This goes for Redis and JSON, while all
that Celery calls on the way is its own code: see ``_is_stock``. Any other message is made by Celery.

What is learned is forgotten after a minute, so that configuration which is changed at run time counts then.

If the process dies before the push, the windows are overdue after ``claim_lease``, as after any lost publish.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from celery_once_beat.windows import HEADERS, Window, encode_headers

from .broker import BatchPublishError
from .outgoing import OutgoingMessages

logger = get_logger(__name__)
_celery_logger = get_logger("celery.beat")

#: Seconds for which what was learned counts.
_KEPT = 60.0
#: Options of an entry that are the same in each of its messages.
_FIXED = {"queue", "exchange", "routing_key", "priority", "ignore_result", "time_limit", "soft_time_limit"}
#: Where the code stands that is Celery's, kombu's or this package's.
_STOCK = tuple(f"{Path(str(each.__file__)).parent}{os.sep}" for each in (celery, kombu, celery_once_beat))
_HOLE = re.compile(r'"window": "\\u0000window"|"\\u0000(\w+)"')


def _is_stock(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(_STOCK)


def _are_stock(of: Any, *names: str) -> bool:
    """Whether these methods are Celery's, kombu's or this package's, whoever stands in the line of bases."""
    places = [vars(of), *map(vars, type(of).__mro__)]
    return all(_is_stock(place[name]) for place in places for name in names if name in place)


class _Kind:
    """One kind of message: its text in pieces, between which stands what differs."""

    def __init__(self, key: str, text: str, queue: str | None) -> None:
        self.key, self.queue = key, queue
        #: The second message was as it would have been written here.
        self.learned = False
        message = json.loads(text)
        self._embed = json.loads(base64.b64decode(message["body"]))[2]
        self._serializer = registry.type_to_name[message["content-type"]]
        headers, properties = message["headers"], message["properties"]
        self.ignores_result = headers["ignore_result"]
        message["body"] = "\0body"
        properties.update(correlation_id="\0id", delivery_tag="\0tag")
        headers.update(id="\0id", root_id="\0id", argsrepr="\0argsrepr", kwargsrepr="\0kwargsrepr")
        message["headers"] = {"window" if name in HEADERS else name: value for name, value in headers.items()}
        message["headers"]["window"] = "\0window"
        parts = _HOLE.split(dumps(message))
        self._texts, self._holes = parts[::2], [hole or "window" for hole in parts[1::2]]

    def write(
        self, amqp: Any, levels: int, args: Any, kwargs: dict[str, Any], headers: Mapping[str, Any], tag: str
    ) -> str:
        """Return the text of a message with these window's headers."""
        _, _, body = serialize((args, kwargs, self._embed), self._serializer)
        given = {
            "body": quoted(base64.b64encode(body if isinstance(body, bytes) else body.encode()).decode()),
            "id": quoted(headers["once_id"]),
            "argsrepr": quoted(saferepr(args, amqp.argsrepr_maxsize, maxlevels=levels)) if args else '"()"',
            "kwargsrepr": quoted(saferepr(kwargs, amqp.kwargsrepr_maxsize, maxlevels=levels)) if kwargs else '"{}"',
            "window": json.dumps(headers)[1:-1],
            "tag": quoted(tag),
        }
        parts = [self._texts[0]]
        for hole, text in zip(self._holes, self._texts[1:], strict=True):
            parts += given[hole], text
        return "".join(parts)


class LearnedMessages:
    """What one beat has learned, and the texts that it has written and not pushed yet."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._kinds: dict[object, _Kind | None] = {}
        self._since = -_KEPT
        #: The producer of this slice, and its batch; None where no message may be written here.
        self._producer: Any = None
        self._batch: Any = None
        #: Of this slice, as ``conf`` says: how deep Celery writes arguments down.
        self._levels = 3
        #: Task → whether nobody but Celery makes its messages, in this slice.
        self._stock: dict[str, bool] = {}
        #: By key of a queue, the texts to push.
        self._texts: dict[str, list[str]] = {}

    @property
    def _app(self) -> Any:
        return self._scheduler.app

    @contextmanager
    def slice(self, producer: Any, batch: Any) -> Iterator[None]:
        """In the block, messages may be written; they are pushed at its end. Raises BatchPublishError."""
        if steady() - self._since > _KEPT:
            self._kinds, self._since = {}, steady()
        self._texts, self._stock = {}, {}
        self._levels = self._app.conf.get("task_repr_maxlevels", 3)
        self._producer = producer if batch is not None and self._may_write(producer) else None
        self._batch = batch
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
        app = self._app
        watched = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
        return (
            self._scheduler.store.settings.fast
            and not app.conf.task_always_eager
            and not app.conf.task_send_sent_event
            and all(isinstance(route, MapRoute) for route in app.amqp.router.routes or ())
            and all(_is_stock(receiver) for signal in watched for _, receiver, *_ in signal.receivers or ())
            and _are_stock(self._scheduler, "apply_entry", "apply_async")
            and _are_stock(app, "send_task")
            and type(app.amqp) is AMQP
            and _is_stock(app.amqp.send_task_message)
            and _are_stock(producer, "publish")
            and type(producer.channel).__module__ == "kombu.transport.redis"
        )

    def _kind_of(self, source: Any) -> object | None:
        """Return what messages have in common that are of one kind; None where the entry's may differ in more."""
        options = {name: value for name, value in source.options.items() if name != "once" and value is not None}
        if (
            self._producer is None
            or not options.keys() <= _FIXED
            or not all(type(value) in (str, int, float, bool) for value in options.values())
            or type(source.args) not in (list, tuple, type(None))
            or type(source.kwargs) not in (dict, type(None))
            or any(
                isinstance(each, beat.BeatLazyFunc) for each in (*(source.args or ()), *(source.kwargs or {}).values())
            )
            or not source.name.isprintable()
        ):
            return None
        if source.task not in self._stock:
            task = self._app.tasks.get(source.task)
            self._stock[source.task] = (
                task is not None
                and getattr(task, "_dump_pydantic_arguments", None) is None
                and _are_stock(task, "apply_async", "shadow_name", "_get_exec_options")
            )
        return (source.task, *sorted(options.items())) if self._stock[source.task] else None

    def write(self, source: Any, window: Window, sent_as: str) -> _Kind | None:
        """Write a window's message if its kind is learned; else return None."""
        kind = self._kinds.get(self._kind_of(source))
        if kind is None or not kind.learned:
            return None
        try:
            task = self._app.tasks[source.task]
            if task.typing:
                task.__header__(*(source.args or ()), **(source.kwargs or {}))
            text = self._text(kind, source, window, sent_as, uuid())
            if not kind.ignores_result:
                self._app.backend.on_task_call(self._producer, sent_as)
        except Exception:  # noqa: BLE001  # Celery raises it, too, and it is logged then
            return None
        _celery_logger.info("Scheduler: Sending due task %s (%s)", source.name, source.task)
        self._texts.setdefault(kind.key, []).append(text)
        return kind

    def _text(self, kind: _Kind, source: Any, window: Window, sent_as: str, tag: str) -> str:
        args, kwargs = list(source.args or ()) or (), dict(source.kwargs or {})  # as Celery has them by then
        return kind.write(self._app.amqp, self._levels, args, kwargs, encode_headers(window, sent_as), tag)

    @property
    def _stack(self) -> Sequence[Any]:
        """The commands in Celery's batch."""
        session = self._batch.state.session if self._producer else None
        return session.pipeline.command_stack if session else ()

    @contextmanager
    def learning(self, source: Any, window: Window, outgoing: OutgoingMessages | None) -> Iterator[None]:
        """Learn from the message that Celery puts into its batch in the block; not if ``outgoing`` is None."""
        before, kind_of = len(self._stack), self._kind_of(source)
        yield
        if outgoing is None or kind_of is None or outgoing.lost or len(self._stack) != before + 1:
            return
        (name, key, text), _ = self._stack[-1]
        key = key.removeprefix(self._producer.channel.global_keyprefix)  # which each push puts before it
        known = self._kinds.get(kind_of)
        try:
            if name != "LPUSH" or (kind_of in self._kinds and known is None):
                return
            if known is None:
                self._kinds[kind_of] = _Kind(key, text, outgoing.queue)
                return
            tag = json.loads(text)["properties"]["delivery_tag"]
            known.learned = (key, text) == (known.key, self._text(known, source, window, outgoing.task_id, tag))
        except Exception as exc:  # noqa: BLE001  # it has another shape
            logger.debug("once: messages of %r can't be written here: %s", source.task, exc)
            known = None
        if known is None or not known.learned:
            self._kinds[kind_of] = None
