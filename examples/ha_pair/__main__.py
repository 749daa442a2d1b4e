"""The demo: two beats, two workers, one of each killed while things run, and a verdict. Under 30 seconds.

Ends with status 0 if every window was executed as promised, 1 if anything was wrong, 130 if it was interrupted;
whatever happens, no process is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from celery_once_beat.errors import OnceError

from .plain import PlainView
from .stage import FailedError, Stage, StoppedError
from .story import play
from .telling import NotShownError, Several, View

DESCRIPTION = """\
Starts a server of its own, two celery beats and two workers, sends two messages twice, kills a beat and later a worker,
and compares what ran with what the schedule owed. It takes some 30 seconds.
"""
EPILOG = """\
Colours and a live picture need rich (pip install rich) and a terminal of 78x19 or more that isn't dumb; NO_COLOR is
respected. ONCE_BEAT_REDIS_URL names a server to use instead; the demo's keys on it are its own, and are removed.

exit status: 0 all is as promised, 1 anything is wrong (the logs are kept), 2 a wrong option, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with these arguments of the command line; return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    began = time.time()
    view: View = (None if options.plain else _live_view(began)) or PlainView(began)
    if options.record:
        view = Several([view, _recording_view(parser, options.record, began)])

    directory = Path(tempfile.mkdtemp(prefix="ha-pair-"))
    stage = Stage(directory, view)

    def interrupt(*_: object) -> None:
        # Seen by the stage's next look, so that no process is started and not noted.
        stage.interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)

    keep = True
    try:
        with contextlib.closing(view):
            view.open()
            verdict = play(stage)
        view.conclude(verdict)
        keep = bool(verdict.faults)
        return 1 if keep else 0
    except StoppedError:
        keep = False
        _complain("interrupted")
        return 130
    except (FailedError, NotShownError, OnceError) as exc:
        keep = any(directory.iterdir())
        _complain(f"ha_pair: {exc}")
        return 1
    except OSError as exc:
        if exc.errno not in (errno.EPIPE, errno.EIO):  # as with "| head", or a terminal that was closed
            raise
        keep = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed
        return 130 if stage.interrupted else 1
    finally:
        stage.end()
        if keep:
            _complain(f"logs and ledger: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.ha_pair",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plain", action="store_true", help="print lines, also in a terminal that can do more")
    parser.add_argument(
        "--record",
        metavar="FILE.svg",
        type=Path,
        help="also write what the live picture shows as an animated SVG, once there is a verdict (needs rich)",
    )
    return parser


def _live_view(began: float) -> View | None:
    """The live picture, where it can be shown."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        return None
    # Only now: rich may not be installed.
    from rich.console import Console  # noqa: PLC0415

    from .live import LiveView, fits  # noqa: PLC0415

    console = Console()
    return LiveView(console, began) if fits(console) else None


def _recording_view(parser: argparse.ArgumentParser, path: Path, began: float) -> View:
    """The recording; ends the demo before it begins if it can't be made."""
    if find_spec("rich") is None:
        parser.error("--record needs rich: pip install rich")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        parser.error(f"--record: {exc}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        parser.error(f"--record: {path} can't be written")
    from .recording import RecordingView  # noqa: PLC0415

    return RecordingView(path, began)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be left to read it
        print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
