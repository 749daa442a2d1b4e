"""A message that is parked: kept as it came, read strictly, never decoded."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message

from celery_once_beat.errors import OnceError
from celery_once_beat.windows import Window, WindowKey, encode_headers
from celery_once_beat.worker import waiting
from celery_once_beat.worker.waiting import kept_of, packed

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = encode_headers(Window("e", T0, None))


def message(body: Any = '[[], {"a": "é"}, {}]', **more: Any) -> Message:
    given = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"id": "1", "task": "proj.report", "retries": 2, "compression": None, "x-death": [T0], **WINDOW},
        "properties": {"correlation_id": "1", "reply_to": "q", "priority": 7, "delivery_mode": 2, "delivery_tag": "t"},
        "delivery_info": {"exchange": "reports", "routing_key": "nightly", "redelivered": True},
        **more,
    }
    return Message(body=body, **given)


@pytest.mark.parametrize("body", ['[[], {"a": "é"}, {}]', b"\x80\x05]\x94.\xff", b""])
def test_it_comes_back_as_it_was(body: Any) -> None:
    """Body, headers, properties and where it goes; what the broker wrote for this delivery alone is left out."""
    found = waiting._unpacked(packed(kept_of(message(body))))
    assert found["body"] == body
    assert (found["content_type"], found["content_encoding"]) == ("application/json", "utf-8")
    assert (found["exchange"], found["routing_key"]) == ("reports", "nightly")
    assert found["properties"] == {"correlation_id": "1", "reply_to": "q", "priority": 7, "delivery_mode": 2}
    assert found["headers"]["retries"] == 2
    assert "compression" not in found["headers"], "kombu has decompressed it"
    assert "x-death" not in found["headers"]


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (None, "hasn't kept it"),
        (kept_of(message("x" * 1_000_001)), "at most 1000000"),
        (kept_of(message(headers={"id": b"bytes"})), "as JSON"),
        (kept_of(message(headers={"id": object()})), "as JSON"),
        (kept_of(message(properties={"priority": "high"})), "property 'priority'"),
        (kept_of(message(delivery_info={})), "neither an exchange nor a routing key"),
        (kept_of(message(content_type=None)), "content_type"),
        (kept_of(message(body={"decoded": True})), "as JSON"),
        (kept_of(message(headers=WINDOW)), "protocol 1"),
    ],
)
def test_what_cant_be_parked(kept: Any, why: str) -> None:
    """One error with the reason; a beat publishes the window instead."""
    with pytest.raises(ValueError, match=why):
        packed(kept)


GOOD = json.loads(packed(kept_of(message())))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 100_000,
        json.dumps({**GOOD, "v": 2}),
        json.dumps({**GOOD, "more": 1}),
        json.dumps({name: value for name, value in GOOD.items() if name != "body"}),
        json.dumps({**GOOD, "body": 3}),
        json.dumps({**GOOD, "base64": 1}),
        json.dumps({**GOOD, "base64": True, "body": "no base64!"}),
        json.dumps({**GOOD, "headers": []}),
        json.dumps({**GOOD, "exchange": None}),
        json.dumps({**GOOD, "exchange": "", "routing_key": ""}),
        json.dumps({**GOOD, "properties": {"user_id": "admin"}}),
        json.dumps({**GOOD, "properties": {"priority": True}}),
    ],
)
def test_what_is_none(text: str) -> None:
    """A foreign text in its key is an error, and nothing of it is published."""
    with pytest.raises(ValueError):  # noqa: PT011  # any of them
        waiting._unpacked(text)


OTHERS = [{}, encode_headers(Window("other", T0, None)), {**WINDOW, "once_v": 9}]


def test_the_message_of_another_window_isnt_published() -> None:
    """Whoever can write to the store can't have a worker publish just anything: it is asked for one window."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    to = {"exchange": "", "routing_key": "nightly"}
    with app.producer_pool.acquire() as producer:
        channel = producer.connection.default_channel
        channel.queue_declare("nightly")
        for headers in OTHERS:
            text = packed(kept_of(message(headers={"id": "1", **headers}, delivery_info=to)))
            with pytest.raises((ValueError, OnceError)):
                waiting._publish(app, WindowKey("e", T0), text)
        elsewhere = {"exchange": "foreign", "routing_key": "nightly"}
        with pytest.raises(ValueError, match="an exchange that no queue of this app has"):
            waiting._publish(app, WindowKey("e", T0), packed(kept_of(message(delivery_info=elsewhere))))
        assert channel._size("nightly") == 0
        waiting._publish(app, WindowKey("e", T0), packed(kept_of(message(delivery_info=to))))
        assert channel._size("nightly") == 1


def test_a_pickle_stays_closed(tmp_path: Any) -> None:
    """A body that does harm when it is unpickled does none here."""
    mark = tmp_path / "mark"

    class Harm:
        def __reduce__(self) -> Any:
            return mark.touch, ()

    import pickle

    body = pickle.dumps(Harm())
    found = waiting._unpacked(packed(kept_of(message(body, content_type="application/x-python-serialize"))))
    assert found["body"] == body
    assert not mark.exists()
    assert base64.b64encode(body).decode() in packed(kept_of(message(body)))
