"""Digests are made in one place, by a hash that Python has in FIPS mode."""

from __future__ import annotations

import ast
import uuid
from pathlib import Path

import celery_once_beat
from celery_once_beat.identity import uuid_of

#: What may be used of hashlib: SHA-1 names a script for Redis, and is said to guard nothing.
ALLOWED = {"identity.py": {"sha256"}, "store/scripts.py": {"sha1"}}
#: Of hmac's keyword.
HMAC = {"web/board/forms.py": {"sha256"}, "web/board/guard.py": {"sha256"}}


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


def test_a_uuid_of_a_text() -> None:
    """It is of the form that RFC 9562 gives to those that others define, and the same for the same text."""
    made = uuid.UUID(uuid_of("a"))
    assert (made.version, made.variant) == (8, uuid.RFC_4122)
    assert uuid_of("a") == str(made) != uuid_of("b")
