"""How the messages of a slice travel together, and what becomes of them if something breaks on the way.

- Over Redis, kombu pushes them in one round trip.
- RabbitMQ confirms each message. py-amqp waits for that before it sends the next one, a round trip a message. Here
  they are sent one behind another, and their confirms are awaited together.
- Over any other broker each message is published by itself.

If the process dies, or sleeps for an hour, before all are out: their windows are overdue after ``claim_lease``, as
after any lost publish, and workers refuse the second copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from amqp import exceptions, spec
from kombu import exceptions as kombu_errors
from kombu.exceptions import OperationalError

from celery_once_beat.clock import steady
from celery_once_beat.wording import failure_words

#: Raised by a batch whose messages perhaps didn't go out; kombu before 5.7 has no such error.
BatchPublishError: type[Exception] = getattr(kombu_errors, "BatchPublishError", OperationalError)

#: Seconds for which a message waits for its confirm if its sender doesn't say.
_WAIT = 5.0
#: Redis commands for one message: the push, and ten expiries, one a priority, if its queue expires.
_COMMANDS = 11


class BlockedError(OperationalError):
    """The broker takes no messages for now."""


class Alarm:
    """Whether RabbitMQ takes no messages, since its memory or its disk is full.

    It tells a connection that publishes, and then reads nothing more from it.
    """

    def __init__(self) -> None:
        self.on = self.was_on = False
        self._publishing = False

    def __enter__(self) -> None:
        """In the block, raise BlockedError when it says that it takes no messages: no confirm would come."""
        self._publishing = True

    def __exit__(self, *_: object) -> None:
        """The block is over."""
        self._publishing = False

    def blocked(self, reason: str) -> None:
        """Called by the connection, when somebody reads from it."""
        self.on = self.was_on = True
        if self._publishing:
            raise BlockedError(reason)

    def unblocked(self) -> None:
        """Called by the connection."""
        self.on = False


def batch(producer: Any, messages: int, alarm: Alarm) -> AbstractContextManager[Any]:
    """Publish what is sent inside together, if the transport can. ``producer`` is None if nothing will be published.

    Celery sends ``after_task_publish`` when a message is in the batch; this package sends ``window_published`` when
    it is out. Raises BatchPublishError at the end if perhaps not all went out.
    """
    confirms: Confirms | None = getattr(getattr(producer, "channel", None), "once_confirms", None)
    if confirms is not None:
        return confirms.together(alarm)
    batched = getattr(producer, "supports_batch_publish", False)
    return producer.batch(messages * _COMMANDS) if batched else nullcontext()


class Confirms:
    """What RabbitMQ has confirmed of one channel's messages: it numbers them from 1, and confirms one, or all up to it.

    It closes a channel for an error, and py-amqp opens it again. Then numbers begin anew, and no confirm of an earlier
    message comes.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        #: What py-amqp does. The instance's ``basic_publish`` would wait for the confirm.
        self._open, self._send = channel.open, partial(type(channel).basic_publish, channel)
        self._sent = 0
        self._unconfirmed: set[int] = set()
        #: Why the broker didn't take one of the messages that nobody has waited for yet.
        self._refusal: Exception | None = None
        self._until = 0.0
        self.are_together = False
        channel.confirm_select()
        channel.once_confirms, channel.open, channel.basic_publish = self, self._open_again, self._publish
        channel.events["basic_ack"] = {self._confirm}
        channel.events["basic_nack"] = {self._refuse}
        channel.events["basic_return"].add(self._return)

    def _open_again(self) -> None:
        """Open the channel behind an error, wherever that was read. py-amqp alone wouldn't ask for confirms again."""
        self._open()
        self._channel.confirm_select()
        if self._unconfirmed:
            self._refusal = exceptions.RecoverableChannelError("the broker closed the channel")
        self._sent, self._unconfirmed = 0, set()

    def _publish(self, *args: Any, confirm_timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, and wait for its confirm, unless :meth:`together` does. As py-amqp's, which it replaces."""
        self._until = steady() + (confirm_timeout or _WAIT)
        self._send(*args, **kwargs)
        self._sent += 1
        self._unconfirmed.add(self._sent)
        if not self.are_together:
            self._wait()

    @contextmanager
    def together(self, alarm: Alarm) -> Iterator[None]:
        """Messages that are sent in the block are waited for at its end, for as long as the last one may wait."""
        self.are_together = True
        try:
            yield
        finally:
            self.are_together = False
        try:
            with alarm:
                if alarm.on and self._unconfirmed:
                    alarm.blocked("it takes no messages")
                self._wait()
        except Exception as exc:
            raise BatchPublishError(f"not all were confirmed: {failure_words(exc, 'message')}") from exc

    def _wait(self) -> None:
        try:
            while self._unconfirmed:
                self._channel.wait([spec.Basic.Ack, spec.Basic.Nack], timeout=max(self._until - steady(), 0.001))
            if self._refusal is not None:
                raise self._refusal
        finally:
            self._refusal = None

    def _confirm(self, number: int, up_to: bool) -> None:  # noqa: FBT001  # as py-amqp calls it
        self._unconfirmed = {each for each in self._unconfirmed if each > number or not (up_to or each == number)}

    def _refuse(self, number: int, up_to: bool) -> None:  # noqa: FBT001  # as py-amqp calls it
        self._refusal = exceptions.MessageNacked()
        self._confirm(number, up_to)

    def _return(self, why: Exception, *_: Any) -> None:
        """No queue is bound for a message that asked to be told (``mandatory``); its confirm comes all the same."""
        self._refusal = why
