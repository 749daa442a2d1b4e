"""Where RedBeat's keys are, by the settings that RedBeat itself reads."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from celery import Celery

from celery_once_beat.errors import SettingError
from celery_once_beat.store import RedBeat
from celery_once_beat.store.clients import check_client

BROKER = "redis://broker/1"


def found(url: str | None = None, **conf: Any) -> tuple[str, dict[str, Any], str | None]:
    app = Celery("proj", broker=BROKER, set_as_current=False)
    app.conf.update(conf)
    redbeat = RedBeat.of_app(app, url)
    settings = redbeat._trip.settings
    check_client(settings)
    return settings.redis_url, dict(settings.redis_options), redbeat.lock


@pytest.mark.parametrize(
    ("conf", "url", "options"),
    [
        ({}, BROKER, {}),
        ({"redbeat_redis_url": "redis://its/2"}, "redis://its/2", {}),
        ({"REDBEAT_REDIS_URL": "redis://its/2"}, "redis://its/2", {}),
        ({"redbeat_redis_url": "unix:///tmp/redis.sock?db=2"}, "redis+socket:///tmp/redis.sock?db=2", {}),
        # What is meant for the broker isn't given to RedBeat's client.
        ({"broker_transport_options": {"visibility_timeout": 60}}, BROKER, {}),
        (
            {"redbeat_redis_options": {"socket_timeout": 5, "retry_period": -1}},
            BROKER,
            {"socket_timeout": 5},
        ),
        (
            {"redbeat_redis_url": "rediss://its/2", "redbeat_redis_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
            "rediss://its/2",
            {"ssl_cert_reqs": ssl.CERT_NONE},
        ),
        (
            {
                "redbeat_redis_url": "redis-sentinel://",
                "redbeat_redis_options": {
                    "sentinels": [("one", 26379), ("two", 26380)],
                    "service_name": "mine",
                    "password": "geheim",
                    "db": 3,
                },
            },
            "sentinel://one:26379;sentinel://two:26380",
            {"master_name": "mine", "password": "geheim", "db": 3},
        ),
        (
            {
                "redbeat_redis_url": "redis-cluster://",
                "redbeat_redis_options": {"startup_nodes": [{"host": "one", "port": "7000"}]},
            },
            "redis+cluster://one:7000",
            {},
        ),
        ({"redbeat_redis_url": "redis://its", "redbeat_redis_options": {"cluster": True}}, "redis+cluster://its", {}),
    ],
)
def test_its_redis(conf: dict[str, Any], url: str, options: dict[str, Any]) -> None:
    """As RedBeat finds it: URL, TLS, Sentinel, Cluster, each in our form."""
    assert found(**conf)[:2] == (url, options)


def test_a_url_that_is_given_goes_first() -> None:
    """Also where the app has forgotten RedBeat's."""
    assert found("redis://old/4", redbeat_redis_url="redis://its/2")[0] == "redis://old/4"
    with pytest.raises(SettingError, match=r"redbeat_redis_url: found sqs:///, expected RedBeat's Redis"):
        found("sqs://")


@pytest.mark.parametrize(
    ("conf", "lock"),
    [
        ({}, "redbeat::lock"),
        ({"redbeat_key_prefix": "its:"}, "its::lock"),
        ({"redbeat_lock_key": "mine"}, "redbeat:mine"),
        ({"redbeat_lock_key": "redbeat:mine"}, "redbeat:mine"),
        ({"redbeat_lock_key": None}, None),
        ({"redbeat_lock_timeout": 60}, "redbeat::lock"),
    ],
)
def test_its_lock(conf: dict[str, Any], lock: str | None) -> None:
    """The key that its beats wait for; None where they are set up without."""
    assert found(**conf)[2] == lock
