"""How the messages of a slice travel together, and what becomes of them if something breaks on the way.

- Over Redis, kombu pushes them in one round trip.
- RabbitMQ confirms each message. Waiting for that before the next is sent, as py-amqp does, takes a round trip a
  message: here they are sent one behind another, and waited for at the end.
- Over any other broker each message is published by itself.

If the process dies, or sleeps for an hour, before all are out: as behind any lost publish, their windows are overdue
after ``claim_lease``, and workers refuse the second copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from amqp.exceptions import MessageNacked
from kombu import exceptions
from kombu.exceptions import OperationalError

from celery_once_beat.clock import steady

#: Raised by a batch whose messages perhaps didn't go out; kombu before 5.7 has neither.
BatchPublishError: type[Exception] = getattr(exceptions, "BatchPublishError", OperationalError)

#: Redis commands for one message: the push, and ten expiries, one a priority, if its queue expires.
_COMMANDS = 11


def batch(producer: Any, messages: int, alarm: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Publish what is sent inside together, if the transport can. ``producer`` is None if nothing will be published.

    Celery sends ``after_task_publish`` when a message is in the batch, this package ``window_published`` when it is
    out. ``alarm`` is entered while confirms are waited for: it raises if the broker takes no messages. Raises
    BatchPublishError at the end if perhaps not all went out.
    """
    if producer is not None and (confirms := _confirms_of(producer.channel)):
        return confirms.together(alarm)
    if not getattr(producer, "supports_batch_publish", False):
        return nullcontext()
    batch: AbstractContextManager[Any] = producer.batch(messages * _COMMANDS)
    return batch


def _confirms_of(channel: Any) -> Confirms | None:
    found = getattr(channel.basic_publish, "__self__", None)
    return found if isinstance(found, Confirms) else None


class Confirms:
    """What RabbitMQ has confirmed of one channel's messages: it numbers them from 1, and confirms one, or all up to it.

    RabbitMQ closes a channel for an error, py-amqp opens it again, and then numbers begin anew.
    """

    @classmethod
    def count_on(cls, channel: Any) -> None:
        """Count the confirms of this channel, unless that is done."""
        known = _confirms_of(channel)
        if known is None or known._broken:  # noqa: SLF001  # its own
            cls(channel)

    def __init__(self, channel: Any) -> None:
        channel.confirm_select()
        self._channel = channel
        #: Sends a message. The channel's own would wait for its confirm.
        self._send = partial(type(channel).basic_publish, channel)
        self._sent = 0
        self._unconfirmed: set[int] = set()
        self._refused = self._together = False
        #: Sending or waiting has raised: no confirm of these numbers may come any more.
        self._broken = False
        #: Seconds for which the last message may wait for its confirm; None: any number.
        self._timeout: float | None = None
        channel.events["basic_ack"] = {self._confirm}
        channel.events["basic_nack"] = {self._refuse}
        channel.basic_publish = self.publish

    def publish(self, *args: Any, confirm_timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, and wait for its confirm, unless :meth:`together` does. As py-amqp's, which it replaces."""
        self._sent += 1
        self._unconfirmed.add(self._sent)
        self._timeout, self._broken = confirm_timeout, True
        self._send(*args, **kwargs)
        self._broken = False
        if not self._together:
            self._wait()

    @contextmanager
    def together(self, alarm: AbstractContextManager[Any]) -> Iterator[None]:
        """Messages that are sent in the block are waited for at its end."""
        self._together = True
        try:
            yield
        finally:
            self._together = False
        if self._broken:
            raise BatchPublishError("the connection broke, or the broker closed the channel")
        try:
            with alarm:
                self._wait()
        except Exception as exc:
            raise BatchPublishError(f"not all were confirmed: {exc!r}") from exc

    def _wait(self) -> None:
        until = None if self._timeout is None else steady() + self._timeout
        self._broken = True
        while self._unconfirmed:
            self._channel.connection.drain_events(timeout=until and max(until - steady(), 0.001))
        refused, self._refused, self._broken = self._refused, False, False
        if refused:
            raise MessageNacked

    def _confirm(self, number: int, up_to: bool) -> None:  # noqa: FBT001  # as py-amqp calls it
        confirmed = {each for each in self._unconfirmed if each < number} if up_to else set()
        self._unconfirmed -= {number, *confirmed}

    def _refuse(self, number: int, up_to: bool) -> None:  # noqa: FBT001  # as py-amqp calls it
        self._refused = True
        self._confirm(number, up_to)
