"""A command that may write to some folders only, as in a container whose root is read-only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from needs import find

#: Each folder gets a mount of its own, which stays as it is when the root becomes read-only.
_SCRIPT = """
while [ "$1" != -- ]; do mount --bind "$1" "$1" || exit; shift; done
shift
mount -o remount,bind,ro / && cd "$PWD" && exec "$@"
"""


def read_only(command: Sequence[str], *writable: Path) -> list[str]:
    """The command with a root that it can't write to; as it is where the machine lets nobody have that."""
    unshare = find("unshare")
    if unshare is None:
        return [*command]
    return [str(unshare), "-rm", "/bin/sh", "-c", _SCRIPT, "sh", *map(str, writable), "--", *command]
