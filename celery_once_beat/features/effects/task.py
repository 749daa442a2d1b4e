"""What an execution of a window, or a call without one, records in the user's own transaction."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from celery_once_beat.errors import EXCEPTION_GROUP, RecordError, WindowRecorded
from celery_once_beat.identity import digest
from celery_once_beat.logs import about, guarded
from celery_once_beat.windows import BodyContext, Database, Window, format_instant
from celery_once_beat.wording import expect, printable, shown

from .statements import Recorded, Row, Transaction

logger = guarded(logging.getLogger(__name__))

#: Characters of an entry's name that people read in its row. The key has all of them.
_MOST_SHOWN = 255
_MOST_STEP = 100
#: The smallest TEXT, MySQL's, holds so many bytes.
_MOST_RESULT = 65_535


class Effects(BodyContext):
    """What one execution records. A body that finds its window recorded already ends here, as done."""

    @cached_property
    def _inserted(self) -> list[tuple[str, object]]:
        """The steps of which this execution has inserted a row, each with the mark of its transaction."""
        return vars(self).setdefault("_inserted", [])  # type: ignore[no-any-return]  # as below

    @cached_property
    def _execution(self) -> str:
        return vars(self).setdefault("_execution", uuid.uuid4().hex)  # type: ignore[no-any-return]  # of several threads the first decides

    def __exit__(self, *raised: object) -> bool:
        """Return whether the body has ended as this window is recorded already; not another one, which called it.

        Logs it. Task groups wrap that error. A group in which something else was raised, too, isn't its end.
        """
        ended = super().__exit__(*raised)
        if raised[1] is None:
            return ended
        refusal: WindowRecorded | None = None
        for each in _members(raised[1]):
            if not isinstance(each, WindowRecorded) or each.window._context is not self:
                return False
            refusal = refusal or each
        if refusal is None:
            return False
        self.result = refusal.result
        logger.info("once: %s: it ends as done", refusal, extra=about("window_recorded", refusal.window))
        return True

    def record(
        self, window: Window, database: Database | None, step: str, result: Any, *, skip: bool, using: str
    ) -> bool:
        """See :meth:`celery_once_beat.Window.record`."""
        if not self.running:
            raise RecordError(
                f"record of window {format_instant(window.start)} of {shown(window.entry)}: found where its body "
                "doesn't run, expected a call within the body"
            )
        fits = isinstance(step, str) and len(step) <= _MOST_STEP and step.isprintable()
        expect("record, step", step, fits, f"a text of at most {_MOST_STEP} characters", RecordError)
        row = self._row(window, step, _as_text(result))
        transaction = self._transaction(database, using)
        here = any(of == step and transaction.is_marked(mark) for of, mark in self._inserted)
        if transaction.in_savepoint() and not here:
            raise RecordError(
                "record: found a savepoint, which can be rolled back while the rest commits, expected the transaction "
                "around it; record before the nested atomic() or begin_nested()"
            )
        if transaction.insert(row):
            self._inserted.append((step, transaction.mark()))
            return True
        found = transaction.find(row.id) or Recorded("", None, "")  # deleted meanwhile
        if found.execution == self._execution:
            if not here:
                raise RecordError(
                    f"record(step={step!r}): found recorded by an earlier transaction of this same execution, expected "
                    "a step of its own for each transaction: record(…, step='load')"
                )
            if row.result is not None:
                transaction.set_result(row)
            return True
        if skip:
            return False
        raise WindowRecorded(
            f"window {format_instant(window.start)} of {shown(window.entry)}, step {step!r}, was recorded at "
            f"{printable(found.recorded_at)} already",
            window,
            step,
            _as_result(found.result),
            found.recorded_at,
        )

    def _row(self, window: Window, step: str, result: str | None) -> Row:
        start = format_instant(window.start)
        kind = "call" if not window.scheduled else "key" if window.keyed else "entry"
        named = ["", kind, self._call(window), "", step]
        if window.scheduled:
            named = [self._settings().key_prefix, kind, window.entry, start, step]
        # Collations fold cases and trailing spaces, an index has a limit, names don't: the key is a digest.
        return Row(
            id=digest(json.dumps(named), 32).hex(),
            entry=printable(window.entry)[:_MOST_SHOWN],
            start=start,
            step=step,
            fence=window.fence,
            attempt=window.attempt,
            recorded_at=format_instant(datetime.now(timezone.utc)),
            execution=self._execution,
            result=result,
        )

    def _transaction(self, database: Database | None, using: str) -> Transaction:
        if database is None:
            from . import in_django  # noqa: PLC0415  # each needs its package

            return in_django.transaction_of(using)
        if isinstance(database, str):
            raise RecordError(
                f"record({database!r}): found a text, expected a Session or Connection of SQLAlchemy; in Django name "
                f"the argument: record(step={database!r})"
            )
        if using != "default":
            raise RecordError(f"record(…, using={using!r}): found beside a session, expected one of the two")
        try:
            from . import in_sqlalchemy  # noqa: PLC0415  # each needs its package
        except ModuleNotFoundError:
            raise RecordError(
                f"record({shown(database)}): expected a Session or Connection of SQLAlchemy, which isn't installed "
                "(pip install 'celery-once-beat[sqlalchemy]'); in Django record()"
            ) from None
        return in_sqlalchemy.transaction_of(database, self._settings().effects_schema)


#: The feature's part of each context in which a body runs.
AroundBody = Effects


def _members(error: object) -> Iterator[object]:
    """Yield an exception, or those of a group and of the groups in it."""
    if not isinstance(error, EXCEPTION_GROUP):
        yield error
        return
    for each in error.exceptions:
        yield from _members(each)


def _as_result(text: object) -> Any:
    try:
        return None if text is None else json.loads(text)  # type: ignore[arg-type]  # a column of another type
    except (TypeError, ValueError, RecursionError):
        raise RecordError(
            f"record, the row's result: found {shown(text)}, expected JSON as record has written it; mend or delete "
            "the row"
        ) from None


def _as_text(result: Any) -> str | None:
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise RecordError(f"record, result: found {shown(result)}, expected what JSON can hold ({exc})") from None
    if len(text) > _MOST_RESULT:
        raise RecordError(
            f"record, result: found {len(text):,} bytes of JSON, expected at most {_MOST_RESULT:,}; keep what is long "
            "in a table of your own"
        )
    return text
