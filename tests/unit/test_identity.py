"""Names in the store: what they are made of, and what can be read from them."""

from __future__ import annotations

import re
import socket

import pytest

from celery_once_beat import identity


@pytest.mark.parametrize("name", [identity.beat_name, identity.order_name, identity.caller_name])
def test_a_name_is_one_word_of_a_record(name: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank or a tab in the host's name would end the word: the record of its window couldn't be read."""
    monkeypatch.setattr(socket, "gethostname", lambda: "my\tlap top")
    assert re.fullmatch(r"my_lap_top:\d+:[-\w]+", name())  # type: ignore[operator]
    assert name() != name()  # type: ignore[operator]


def test_an_execution_is_one_of_its_delivery() -> None:
    """By its name: the worker's main process closes what its child began."""
    delivery = identity.delivery_name("w 1@host")
    assert re.fullmatch(r"w_1@host:[0-9a-f]{12}", delivery)
    execution = identity.execution_name(delivery)
    assert re.fullmatch(re.escape(delivery) + ":[0-9a-f]{4}", execution)
    assert identity.host_of(execution) == "w_1@host"


def test_a_delivery_to_nobody_known_has_a_name() -> None:
    """A request without a host name is another tool's."""
    assert identity.host_of(identity.delivery_name(None)) == "?"


def test_workers_are_told_apart() -> None:
    """Whatever their users call them."""
    names = ("mail:1@host", "mail:2@host", "mail/2@host")
    assert [identity.host_of(identity.delivery_name(name)) for name in names] == [
        "mail_1@host", "mail_2@host", "mail_2@host",
    ]  # fmt: skip


def test_a_beat_is_asked_for_by_its_host_or_its_name() -> None:
    """A host isn't meant by the first letters of its name."""
    assert identity.is_of("box:12:ab", "box")
    assert identity.is_of("box:12:ab", "box:12:ab")
    assert not identity.is_of("box2:12:ab", "box")
