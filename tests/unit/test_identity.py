"""Names in the store: what they are made of, what can be read from them, and the hash that they are made by."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path

import pytest

import celery_once_beat
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


# -- digests

#: What may be used of hashlib: SHA-1 names a script for Redis, and is said to guard nothing.
ALLOWED = {"identity.py": {"sha256"}, "store/scripts.py": {"sha1"}}
#: Of hmac's keyword.
HMAC = {"web/board/actions.py": {"sha256"}, "web/board/guard.py": {"sha256"}}


def test_no_other_hash() -> None:
    """A hash that FIPS mode lacks (BLAKE2, MD5; UUIDs of version 3 and 5) is used nowhere."""
    root = Path(celery_once_beat.__file__).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Attribute(value=ast.Name("hashlib"), attr=name)
                    | ast.Attribute(value=ast.Name("uuid"), attr="uuid3" | "uuid5" as name)
                ):
                    found.setdefault(path.relative_to(root).as_posix(), set()).add(name)
                case ast.ImportFrom(module="hashlib" | "_hashlib" | "_blake2"):
                    raise AssertionError(f"{path}: import hashlib itself")
    assert found == ALLOWED | HMAC
