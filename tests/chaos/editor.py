"""One of the processes that edit schedules while all else goes on: ``python -m chaos.editor``.

What it sends goes into the ledger before it is sent (kind ``edit``), and what was answered after (``answer``):

- ``done``, with the version and the server's time where the change has one;
- ``same``: nothing was to be changed; ``none``: there is no such schedule;
- ``conflict``, with the version that there is;
- ``unknown``: there was no answer, or no certain one. It may have been carried out. Where the log of changes has it,
  another ``answer`` says ``done``.

Each edit is told apart by its id: it is the note of the change, and the argument with which the windows run.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from chaos.entries import EDITED, PERIODS
from ledger import Ledger

from celery_once_beat import Schedules
from celery_once_beat.client import OrderedWindow
from celery_once_beat.errors import OnceError, StoreUnavailableError, UnknownScheduleError, VersionConflictError
from celery_once_beat.schedules import Schedule
from celery_once_beat.windows import format_instant

#: What people do, and how often beside the others.
KINDS = {"set": 42, "compare and set": 18, "pause": 10, "resume": 13, "delete": 6, "compare and delete": 4, "run": 7}


class Editor:
    """What one process does, from a seed."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.name: str = given["name"]
        self.ledger = Ledger(given["ledger"])
        app = Celery("editor", set_as_current=False)
        app.conf.update(given["settings"])
        self.schedules = Schedules(app)
        self.random = random.Random(f"{given['seed']} {self.name}")
        #: Version of each name as it was seen last: perhaps long ago, then a compare and set conflicts.
        self.seen: dict[str, int] = {}

    def play(self, edits: int, every: float) -> None:
        """Make so many edits, one in ``every`` seconds where the store keeps up."""
        begin = time.monotonic()
        for number in range(edits):
            time.sleep(max(begin + (number + self.random.random()) * every - time.monotonic(), 0))
            kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
            self.edit(kind, self.random.choice(EDITED), f"{self.name}-{number}")

    def edit(self, kind: str, name: str, edit: str) -> str:
        """Send one edit, and note what was answered; returns the result."""
        words = {"by": self.name, "note": edit}
        compared = self._version(name) if kind.startswith("compare") else None
        fields: dict[str, Any] = {"what": kind.removeprefix("compare and "), "if_version": compared}
        send: Callable[[], Any]
        if fields["what"] == "set":
            fields["period"] = self.random.choice(PERIODS)
            fields["catch_up"] = "all" if self.random.random() < 0.8 else "latest"
            options = {"task": "chaos.edited_app.work", "schedule": fields["period"], "args": [edit]}
            once = {"catch_up": fields["catch_up"]}
            send = lambda: self.schedules.set(name, **options, once=once, if_version=compared, **words)  # noqa: E731
        elif fields["what"] == "delete":
            send = lambda: self.schedules.delete(name, if_version=compared, **words)  # noqa: E731
        elif kind == "run":
            send = lambda: self.schedules.run(name)  # noqa: E731
        else:
            send = lambda: getattr(self.schedules, kind)(name, **words)  # noqa: E731
        self.ledger.write("edit", edit=edit, entry=name, **fields)
        return self._answer(edit, name, **self._ask(send, edit))

    def _ask(self, send: Callable[[], Any], edit: str) -> dict[str, Any]:
        try:
            answer = send()
        except VersionConflictError as exc:
            return {"result": "conflict", "there": exc.current.version if exc.current else 0}
        except UnknownScheduleError:
            return {"result": "none"}
        except StoreUnavailableError as exc:
            return {"result": "unknown", "why": str(exc)}
        found: dict[str, Any] = {"result": "none" if answer is False else "done"}
        if isinstance(answer, Schedule) and answer.note == edit:  # else it was so before, by another's edit
            found |= {"version": answer.version, "server": format_instant(answer.changed_at)}
        elif isinstance(answer, OrderedWindow):
            found |= {"start": format_instant(answer.start), "task_id": answer.task_id}
        return found

    def _answer(self, edit: str, name: str, **answer: Any) -> str:
        by_log = "start" not in answer and "version" not in answer
        if answer["result"] == "unknown":
            self.ledger.write("answer", edit=edit, entry=name, **answer)
        if by_log and answer["result"] in ("done", "unknown"):
            change = self._find(name, edit)
            if change is not None:
                answer = {"result": "done", **change}
            elif answer["result"] == "done":
                answer = {"result": "same"}
        if answer["result"] != "unknown":
            self.ledger.write("answer", edit=edit, entry=name, **answer)
        if "version" in answer:
            self.seen[name] = answer["version"]
        result: str = answer["result"]
        return result

    def _find(self, name: str, edit: str) -> dict[str, Any] | None:
        """The version and the time of a change, of which the answer says neither."""
        for change in self._patiently(lambda: self.schedules.changes(name)):
            if change.note == edit:
                return {"version": change.version, "server": format_instant(change.at)}
        return None

    def _version(self, name: str) -> int:
        """The version to compare with: as it is now, or on purpose as it was some time ago."""
        if name in self.seen and self.random.random() < 0.5:
            return self.seen[name]
        known = self._patiently(lambda: self.schedules.get(name))
        return known.version if known else 0

    @staticmethod
    def _patiently(ask: Callable[[], Any]) -> Any:
        for _ in range(600):
            try:
                return ask()
            except OnceError:
                time.sleep(0.2)
        return ask()


if __name__ == "__main__":
    given = json.loads(os.environ["EDITOR"])
    Editor(given).play(given["edits"], given["every"])
