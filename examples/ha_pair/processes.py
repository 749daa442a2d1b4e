"""Processes in sessions of their own, so that Ctrl-C in a terminal reaches the demo alone, which ends them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ("Process",)


class Process:
    """A process with all its children; what it prints goes to ``<directory>/<name>.log``."""

    def __init__(self, name: str, command: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._over = False
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                cwd=directory,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self, pattern: str) -> bool:
        """Whether its log has a line that matches."""
        return re.search(pattern, self.log.read_text(errors="replace"), re.MULTILINE) is not None

    def exit_code(self) -> int | None:
        """Exit status, minus n where signal n ended it; None while it runs."""
        code = self._popen.poll()
        if code is not None:
            self._kill_group()  # children that outlived it; once, while the group's number is still theirs
        return code

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); its children are its own affair."""
        if self._popen.poll() is None:
            self._popen.terminate()

    def pause(self) -> None:
        """Freeze it and all its children (SIGSTOP), as a machine that is suspended."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and all its children; returns once it is gone. Again: does nothing."""
        self._kill_group()
        self._popen.wait()

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGKILL)
        self._over = True

    def _signal_group(self, number: int) -> None:
        if not self._over:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody, or only the dead, in it
                os.killpg(self._popen.pid, number)
