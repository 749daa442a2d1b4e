"""A program in a pseudo-terminal, as in front of a person: what it draws is read, keys are typed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from processes import wait_until

#: The program's controlling terminal is the pseudo-terminal: only then does Ctrl-C there become a signal.
_CONTROLLED = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Terminal:
    """A program that runs in a terminal of its own, in a session of its own. End it with :meth:`end`."""

    def __init__(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self._master, terminal = pty.openpty()
        os.set_blocking(self._master, False)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environ = {**ours, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _CONTROLLED, *command], cwd=cwd, env=environ, start_new_session=True,
                stdin=terminal, stdout=terminal, stderr=terminal,
            )  # fmt: skip
        finally:
            os.close(terminal)
        self.pid = self._popen.pid
        self._raw = b""

    @property
    def raw(self) -> str:
        """All that was sent to the terminal so far."""
        with contextlib.suppress(BlockingIOError):
            while data := self._read():
                self._raw += data
        return self._raw.decode(errors="replace")

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 65536)
        except OSError as exc:
            if exc.errno == errno.EIO:  # nobody has the terminal open any more
                return b""
            raise

    @property
    def text(self) -> str:
        """The same without control sequences: all frames, one below the other."""
        return _ESCAPE.sub("", self.raw).replace("\r\n", "\n").replace("\r", "\n")

    @property
    def cursor_visible(self) -> bool:
        """Whether the cursor was left, or made, visible at last."""
        return self.raw.rfind("\x1b[?25l") <= self.raw.rfind("\x1b[?25h")

    def wait_text(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        """Wait until the text has a match of ``pattern``; fails as soon as the program has ended without one."""

        def look() -> re.Match[str] | None:
            ended = self._popen.poll()
            found = re.search(pattern, self.text, re.MULTILINE)
            assert found or ended is None, f"ended with {ended} before it showed {pattern!r}:\n{self.text[-3000:]}"
            return found

        return wait_until(look, f"the terminal shows {pattern!r}", timeout)

    def wait(self, timeout: float) -> int:
        """Wait until the program has ended, and return its exit status; -n if signal n ended it."""

        def ended() -> bool:
            _ = self.raw  # a terminal that nobody reads holds the program up
            return self._popen.poll() is not None

        wait_until(ended, "the program in the terminal ends", timeout)
        return self._popen.returncode

    def type(self, keys: str) -> None:
        r"""Type; Ctrl-C is ``"\x03"``."""
        os.write(self._master, keys.encode())

    def end(self) -> None:
        """End the program, by force if need be, and the terminal. It may end its own processes first."""
        if self._popen.poll() is None:
            self._popen.terminate()
            with contextlib.suppress(AssertionError):
                self.wait(15)
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        os.close(self._master)
