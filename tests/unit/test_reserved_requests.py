"""Of which messages that wait in a worker the store is told, and for how long it is to believe it."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.worker.request import Request

from celery_once_beat.features.reserved.worker import Waiting, limit_windows, name_of_copies, read_waiting
from celery_once_beat.settings import Settings
from celery_once_beat.windows import Window, WindowKey, encode_headers
from celery_once_beat.worker.message import DELIVERY
from celery_once_beat.worker.request import OnceRequest

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
HEADERS = encode_headers(Window("tick", T0, None))


def read(headers: dict[str, Any], cls: type[Request] = OnceRequest, lease: float | None = None) -> Waiting | None:
    request: Any = object.__new__(cls)
    request._request_dict = {"id": "one", "retries": 2, **headers}
    request._task = SimpleNamespace(once_lease=lease)
    return read_waiting(request, Settings(redis_url="redis://localhost", lease=30.0, start_timeout=600.0))


@pytest.mark.parametrize(
    ("headers", "lease", "length"),
    [
        (HEADERS, None, 30.0),
        (HEADERS, 40.0, 40.0),
        (encode_headers(Window("tick", T0, None, lease=50.0)), 40.0, 50.0),
        ({"headers": HEADERS}, 5000.0, 600.0),
    ],
)
def test_a_window_is_believed_for_a_lease(headers: dict[str, Any], lease: float | None, length: float) -> None:
    """The entry's, the task's or the setting's; and no longer than a message may wait anyway."""
    assert read(headers, lease=lease) == Waiting(WindowKey("tick", T0), 2, length)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        encode_headers(Window("tick", T0, None, tracked=False)),
        encode_headers(Window("key", T0, None, tracked=False, keyed=True)),
        encode_headers(Window("tick", T0, None), sent_as="another message"),
        {**HEADERS, "once_start": "soon"},
        {**HEADERS, "once_v": 99},
        {**HEADERS, "retries": -1},
    ],
)
def test_what_the_store_is_not_told_of(headers: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """What no beat recovers, and what can't be read: its execution says so."""
    assert read(headers) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("headers", "copy"),
    [({}, True), ({"retries": 3}, False), ({"once_attempt": 2}, False), ({"once_put_back": 1}, False)],
)
def test_which_messages_take_one_token_of_a_rate_limit(headers: dict[str, Any], copy: bool) -> None:
    """Copies do; a retry, a next attempt, and one that was put back before it ran, take one each."""

    def name(headers: dict[str, Any]) -> object:
        request: Any = object.__new__(OnceRequest)
        request.id, request._request_dict = "one", {"retries": 2, DELIVERY: "here", **HEADERS, **headers}
        return name_of_copies(request)

    assert (name({}) == name(headers)) is copy


def test_a_message_without_a_window_is_the_bases_alone() -> None:
    """Nothing else of it is read: tests of other people's have messages that are mocks."""
    headers = {"id": "one", "task": "plain", "argsrepr": "", "kwargsrepr": ""}
    message = Mock(headers=headers, content_type="application/json", payload=([], {}, {}))
    message.properties.get.return_value = None
    made = OnceRequest(message, app=Mock(), task=Mock(), hostname="here")
    assert DELIVERY not in made.request_dict
    message = Mock(headers={**headers, **HEADERS}, delivery_info={}, properties={}, payload=([], {}, {}))
    assert DELIVERY in OnceRequest(message, app=Mock(), task=Mock(once_limit="one")).request_dict


def test_a_copy_with_a_countdown_takes_no_token() -> None:
    """Celery has a hook of its own for such messages, and for those that were put back; others are left to it."""
    held: list[Any] = []
    plain: list[Any] = []
    less: list[None] = []
    consumer = SimpleNamespace(
        connection=1,
        qos=SimpleNamespace(decrement_eventually=lambda: less.append(None)),
        _limit_task=print,
        _limit_post_eta=lambda *given: plain.append(given),
        _schedule_bucket_request=lambda bucket: None,
    )
    limit_windows(consumer, lambda request: request or None)
    bucket = SimpleNamespace(add=held.append)
    for request in ("one", "one", "", "two"):
        consumer._limit_post_eta(request, bucket, 1)
    consumer._limit_task("two", bucket, 1)
    assert held == [["one", 1], ["one", 0], ["two", 1], ["two", 0]]
    assert plain == [("", bucket, 1)]
    assert len(less) == 3, "each of ours counts no more among what waits for its time"


def test_a_new_connection_empties_the_buckets() -> None:
    """What waited for a token comes once more then, and takes it: nothing has run for the first copy."""
    held: list[Any] = []
    hooks = {"_limit_task": print, "_limit_post_eta": print, "_schedule_bucket_request": lambda _: None}
    consumer = SimpleNamespace(connection=1, **hooks)
    limit_windows(consumer, lambda request: request)
    for connection in (1, 1, 2, 2):
        consumer.connection = connection
        consumer._limit_task("one", SimpleNamespace(add=held.append), 1)
    assert held == [["one", 1], ["one", 0], ["one", 1], ["one", 0]]
